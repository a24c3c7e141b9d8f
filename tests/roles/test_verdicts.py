"""The judgement that a person reads in a note."""

import time

import pytest

from nlrl_jax.roles.dialogues import before_verdict, verdict

NOTES = [
    ("This step is GOOD.", "GOOD"),
    ("I see it. This step is BAD", "BAD"),
    ("This step is **GOOD**.", "GOOD"),
    ("**This step is GOOD**", "GOOD"),
    ("**This step is** GOOD", "GOOD"),
    ('This step is "GOOD".', "GOOD"),
    ("This step is `BAD`", "BAD"),
    ("This step is: GOOD", "GOOD"),
    ("This step is : GOOD", "GOOD"),
    ("This step is <b>GOOD</b>", "GOOD"),
    ("This step is <verdict>BAD</verdict>", "BAD"),
    ("<verdict>GOOD</verdict>", "GOOD"),
    ("this step is good", "GOOD"),
    ("This Step Is Unknown.", "UNKNOWN"),
    ("This step is “GOOD”.", "GOOD"),
    ("This step is 'GOOD'", "GOOD"),
    ("This step is [GOOD]", "GOOD"),
    ("This step is (GOOD)", "GOOD"),
    ("This step is - GOOD", "GOOD"),
    ("This step is \u2192 GOOD", "GOOD"),
    ("This step is a GOOD step.", "GOOD"),
    ("This step is therefore GOOD.", "GOOD"),
    ("This step is considered **BAD** because", "BAD"),
    ("This step is \\textbf{GOOD}.", "GOOD"),
    ("This step is $\\boxed{GOOD}$", "GOOD"),
    ("This step is GOOD. Wait. This step is BAD.", "BAD"),
    ("This step is GOOD, although the last was not.", "GOOD"),
    ("This step is not GOOD.", ""),
    ("This step isn't GOOD.", ""),
    ("This step is GOOD or BAD.", ""),
    ("This step is GOOD/BAD", ""),
    ("This step is GOOD, BAD or UNKNOWN", ""),
    ("This step is GOOD, not BAD.", "GOOD"),
    ("This step is neither GOOD nor BAD", ""),
    ("This step is", ""),
    ("This step is GO", ""),
    ("This step is GOOD. But this step is BA", ""),
    ("This step is GOOD. This step is", "GOOD"),
    ("This step is useful.", ""),
    ("I found the key.", ""),
    ("", ""),
    ("GOOD", "GOOD"),
    ("**GOOD**", "GOOD"),
    ("good.", "GOOD"),
    ("I found the key. GOOD.", "GOOD"),
    ("I found the key. good", ""),
    ("Verdict: GOOD", "GOOD"),
    ("**Verdict:** BAD.", "BAD"),
    ("Final verdict: `UNKNOWN`", "UNKNOWN"),
    ("Verdict: This step is GOOD", "GOOD"),
    ("The step is BAD.", "BAD"),
    ("This action was GOOD.", "GOOD"),
    ("This step was a BAD one", "BAD"),
    ("The verdict is GOOD.", "GOOD"),
    ("I judge this step as BAD.", "BAD"),
    ("Rating: **GOOD**", "GOOD"),
    ("This step is GOOD. This step is not GOOD", ""),
    ("A good idea, but this step is BAD.", "BAD"),
    ("This step is goodish", ""),
    ("This step is BADLY chosen", ""),
    ("GOOD or BAD?", ""),
    ("This step is\nGOOD", "GOOD"),
    ("This step is *very* good", "GOOD"),
    ("This step is \u2705 GOOD", "GOOD"),
    ("This step is... GOOD", "GOOD"),
    ("This step is __UNKNOWN__", "UNKNOWN"),
    ("<think>This step is BAD</think>This step is GOOD", "GOOD"),
    ("This step is GOOD. The next one may be BAD.", "GOOD"),
    ("I open a door. This step is UNKNOWN. I do not know if it is GOOD.", "UNKNOWN"),
    ("This  step  is  GOOD", "GOOD"),
    ("**This step** is **BAD**!", "BAD"),
    ("Judgement -> GOOD", "GOOD"),
    ("Judgment = BAD", "BAD"),
    ("There is nothing good here.", ""),
    ("It is bad.", ""),
    ("Step: GOOD", "GOOD"),
    ('"This step is GOOD."', "GOOD"),
    ("This step is GOOD. The last action was BAD.", "GOOD"),
    ("The last action was BAD.", "BAD"),
    ("This step seems GOOD.", "GOOD"),
    ("This step is GOOD and BAD", ""),
    ("This step is absolutely not GOOD", ""),
    ("It's GOOD.", "GOOD"),
    ("I would say GOOD.", "GOOD"),
    ("I would not say GOOD or BAD", ""),
    ("The door is open, so BAD.", "BAD"),
    ("Therefore, GOOD", "GOOD"),
    ("Verdict GOOD", "GOOD"),
    ("\\boxed{BAD}", "BAD"),
    ("Conclusion - BAD", "BAD"),
    ("This step is mostly GOOD", "GOOD"),
    ("That is so good", ""),
    ("The other step was good.", ""),
    ("This step is GOOD... hmm, actually BAD.", "BAD"),
    ("I cannot tell whether this step is GOOD.", ""),
    ("If this step is BAD, I will see.", ""),
    ("The action taken is GOOD.", "GOOD"),
    ("The action is neither GOOD nor BAD; it is UNKNOWN.", "UNKNOWN"),
    ("This step is not BAD, it is GOOD.", "GOOD"),
    ("This step is not GOOD; it is BAD.", "BAD"),
    ("This step is not GOOD. I doubt it is BAD", ""),
    ("This step is GOOD if the door is open, otherwise BAD.", ""),
    ("Overall, this is a GOOD step.", "GOOD"),
    ("That was a BAD move.", "BAD"),
    ("If it is a GOOD step, the door opens.", ""),
    ("Is this a GOOD step?", ""),
    ("This is not a GOOD step.", ""),
    ("BAD: the agent walked away from the key.", "BAD"),
    ("GOOD - the agent found the key", "GOOD"),
    ("**BAD**\n\nThe agent bumped into the wall.", "BAD"),
    ("GOOD: nearer to the key. BAD: away from it.", ""),
    ("BAD luck", ""),
    ("This step is [GOOD/BAD/UNKNOWN]. I moved on. This step is [GOOD].", "GOOD"),
    ("This step is „GOOD“.", "GOOD"),
    ("This step is 「BAD」。", "BAD"),
    ("This step is GOOD<|im_end|>", "GOOD"),
    ('{"verdict": "BAD"}', "BAD"),
]


@pytest.mark.parametrize("note, word", NOTES)
def test_what_a_person_reads(note, word):
    assert verdict(note) == word


@pytest.mark.parametrize(
    "note, begun",
    [
        ("I see. This step is GOOD.", "I see. This step is"),
        ("I see. This step is **GOOD**.", "I see. This step is"),
        ("**This step is** GOOD", "This step is"),
        ("I see. **Verdict:** GOOD", "I see. This step is"),
        ("I see. <verdict>GOOD</verdict>", "I see. This step is"),
        ("I see. GOOD", "I see. This step is"),
        ("I see.", "I see. This step is"),
        ("", "This step is"),
    ],
)
def test_the_critic_reads_a_note_up_to_its_judgement(note, begun):
    assert before_verdict(note) == begun


def test_other_words():
    assert verdict("This step is *yes*", ("YES", "NO")) == "YES" and not verdict("This step is GOOD", ("YES", "NO"))


@pytest.mark.parametrize("piece", ["This step is ", "this ", "verdict: ", "this step is so ", "*", "not "])
def test_long_notes_are_read_in_no_time(piece):
    clock = time.process_time()
    verdict(f"This step is {piece * 8000}"), before_verdict(piece * 8000)
    assert time.process_time() - clock < 2
