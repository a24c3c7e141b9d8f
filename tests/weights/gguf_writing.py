"""Ends of GGUF files that tests write with the package gguf."""


def add_tokenizer_keys(writer, keys):
    """Metadata of the tokenizer by type: name, such as "bos_token_id" or "chat_template" -> value."""
    for name, value in keys.items():
        full = f"tokenizer.ggml.{name}" if name != "chat_template" else "tokenizer.chat_template"
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(full, value)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
