"""What servers say when a prompt or a reply is too long for them."""

import pytest

from nlrl_jax.backends import context_limits

BODY = {"max_tokens": 5000}
# Server or provider, what it says for a reply of 5,000 tokens, its limit, and what was needed (0: it does not say).
CONTEXT = [
    (
        "vLLM",
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is "
        "4096 tokens and your request has 37 input tokens (5000 > 4096 - 37).",
        4096,
        5037,
    ),
    (
        "vLLM",
        "max_tokens=5000 cannot be greater than max_model_len=max_total_tokens=4096. Please request fewer.",
        4096,
        5000,
    ),
    (
        "vLLM",
        "This model's maximum context length is 4096 tokens. However, you requested 5037 tokens (37 in the "
        "messages, 5000 in the completion). Please reduce the length of the messages or completion.",
        4096,
        5037,
    ),
    (
        "vLLM",
        "This model's maximum context length is 8192 tokens. However, you requested 5000 output tokens and "
        "your prompt contains at least 3193 input tokens, for a total of at least 8193 tokens. "
        "(parameter=input_tokens, value=3193)",
        8192,
        8193,
    ),
    (
        "vLLM",
        "The decoder prompt (length 5017) is longer than the maximum model length of 4096.",
        4096,
        5017,
    ),
    (
        "SGLang",
        "The input (5031 tokens) is longer than the model's context length (4096 tokens).",
        4096,
        5031,
    ),
    (
        "SGLang",
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a "
        "total of 5037 tokens: 37 tokens from the input messages and 5000 tokens for the completion.",
        4096,
        5037,
    ),
    (
        "llama.cpp",
        '{"error":{"code":400,"message":"request (5031 tokens) exceeds the available context size (1024 '
        'tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":1024}}',
        1024,
        5031,
    ),
    (
        "llama.cpp",
        "Context size has been exceeded.",
        0,
        0,
    ),
    (
        "llama-cpp-python",
        "Requested tokens (5010) exceed context window of 4096",
        4096,
        5010,
    ),
    (
        "TGI",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 37 `inputs` "
        "tokens and 5000 `max_new_tokens`",
        4096,
        5037,
    ),
    (
        "TGI",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
        1024,
        2000,
    ),
    (
        "Ollama",
        "prompt too long; exceeded max context length by 4821 tokens",
        0,
        0,
    ),
    (
        "Ollama",
        "the input length exceeds the context length",
        0,
        0,
    ),
    (
        "LM Studio",
        "Trying to keep the first 5100 tokens when context the overflows. However, the model is loaded with "
        "context length of only 4096 tokens, which is not enough.",
        4096,
        5100,
    ),
    (
        "OpenAI",
        "This model's maximum context length is 4097 tokens, however you requested 5103 tokens (103 in your "
        "prompt; 5000 for the completion). Please reduce your prompt; or completion length.",
        4097,
        5103,
    ),
    (
        "OpenAI",
        '{"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}',
        0,
        0,
    ),
    (
        "OpenRouter",
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens "
        "(39000 of text input, 1000 in the output).",
        32768,
        40000,
    ),
    (
        "Mistral",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32768,
        40000,
    ),
    (
        "Anthropic",
        "prompt is too long: 213462 tokens > 200000 maximum",
        200000,
        213462,
    ),
    (
        "Anthropic",
        "input length and `max_tokens` exceed context limit: 199000 + 5000 > 200000, decrease input length",
        200000,
        204000,
    ),
    (
        "Gemini",
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1048575,
        1196265,
    ),
    (
        "Groq",
        "Please reduce the length of the messages or completion.",
        0,
        0,
    ),
    (
        "Cerebras",
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        8192,
        9000,
    ),
    (
        "xAI",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131072,
        537812,
    ),
    (
        "Bedrock",
        "Input is too long for requested model.",
        0,
        0,
    ),
    (
        "DashScope",
        "Range of input length should be [1, 30720]",
        30720,
        0,
    ),
    (
        "GitHub",
        "prompt token count of 6000 exceeds the limit of 4096",
        4096,
        6000,
    ),
    (
        "Moonshot",
        "Your request exceeded model token limit: 8192 (requested: 9001)",
        8192,
        9001,
    ),
    (
        "MiniMax",
        "invalid params, context window exceeds limit (2013)",
        0,
        0,
    ),
    (
        "TensorRT-LLM",
        "Prompt length (6000) exceeds maximum input length (4096). Set log level to info",
        4096,
        6000,
    ),
    (
        "TabbyAPI",
        "Prompt length 6000 is greater than max_seq_len 4096",
        4096,
        6000,
    ),
    (
        "watsonx",
        "the number of input tokens 6000 cannot exceed the total tokens limit 4096 for this model",
        4096,
        6000,
    ),
    (
        "llama.cpp",
        '{"error":{"code":400,"message":"the request exceeds the available context size, '
        'try increasing it","type":"exceed_context_size_error","n_prompt_tokens":300,"n_ctx":256}}',
        256,
        300,
    ),
    ("TabbyAPI", "Prompt length 6000 is greater than max_seq_len 4096", 4096, 6000),
    ("TensorRT-LLM", "Prompt length (6000) exceeds maximum input length (4096). Set log level to info.", 4096, 6000),
    ("LMDeploy", "input length 6000 exceeds session_len 4096", 4096, 6000),
    (
        "TEI",
        "Input length (6000 tokens) exceeds the maximum allowed length (4094 tokens). Use a shorter input.",
        4094,
        6000,
    ),
    ("Fireworks", "The prompt is too long: 9000, model maximum context length: 8192", 8192, 9000),
    ("Zhipu", "Prompt exceeds max length", 0, 0),
    ("others", "failed to process context: prompt has 6000 tokens, n_ctx = 4096", 4096, 6000),
    ("others", "Requested token count 9000 exceeds the model's context of 8192", 8192, 9000),
    ("others", "Token limit exceeded: 9000 > 8192", 8192, 9000),
    ("others", "Sequence length 9000 exceeds max 8192", 8192, 9000),
    ("others", "input too long", 0, 0),
]
REPLY = [
    "max_tokens must be at most 4096",
    "Input validation error: `max_new_tokens` must be <= 4096. Given: 5000",
    "max_tokens is too large: 5000. This model supports at most 4096 completion tokens, whereas you provided 5000.",
    "max_tokens: 5000 > 4096, which is the maximum allowed number of output tokens for the model",
    "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
    "`max_tokens` must be less than or equal to `4096`, the maximum value for `max_tokens` is less than "
    "the context_window",
]
# About something else.
OTHERS = [
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "max_tokens too small",
    "temperature must be at most 2",
    "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 500 instead.",
    "Field 'n': Value must be between 1 <= value <= 4, but got 5",
    "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9001",
    "request_too_large: Request exceeds the maximum allowed number of bytes",
    "Only no echo is supported",
    "System role not supported",
    "stop: list should have at most 4 items",
    "the prompt was flagged",
    '{"message": "The request took too long to process"}',
    "list of stop strings too long",
    "",
]


@pytest.mark.parametrize("server, error, limit, needed", CONTEXT)
def test_a_context_that_is_too_short_is_named_with_both_numbers(server, error, limit, needed):
    advice = context_limits.advice(error, BODY)
    assert "--context_tokens" in advice and "5000" in advice
    numbers = [int(word) for word in advice.replace(".", " ").replace(",", " ").split() if word.isdigit()]
    assert set(numbers) == {5000, *(number for number in (limit, needed) if number)}, (server, advice)


@pytest.mark.parametrize("error", REPLY)
def test_a_limit_of_the_reply_alone_is_no_matter_of_the_context(error):
    advice = context_limits.advice(error, BODY)
    assert "more than 4096 tokens in one reply" in advice and "--context_tokens" not in advice


@pytest.mark.parametrize("error", OTHERS)
def test_other_refusals_are_not_about_lengths(error):
    assert context_limits.advice(error, BODY) == ""
