#!/usr/bin/env python3
"""Writes chat.json beside this file: conversations as tokens of chat templates, and which of them
are an assistant's, as transformers' apply_chat_template has it, by the tokenizer of
tokenizers.json. Needs transformers."""
import json
import os

from golden import write
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
ANSWER = "{% generation %}{{ text }}{% endgeneration %}"
TEMPLATES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
              "{% set text = m['content'] + '<|im_end|>' %}{% if m['role'] == 'assistant' %}" + ANSWER +
              "{% else %}{{ text }}{% endif %}{{ '\\n' }}{% endfor %}",
    "llama3": "{{ '<|begin_of_text|>' }}{% for m in messages %}"
              "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
              "{% set text = m['content'] | trim + '<|eot_id|>' %}{% if m['role'] == 'assistant' %}" + ANSWER +
              "{% else %}{{ text }}{% endif %}{% endfor %}",
}
SPECIALS = {"chatml": ["<|im_start|>", "<|im_end|>"],
            "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]}


def said(*contents, system=None):
    roles = ["user", "assistant"]
    return ([{"role": "system", "content": system}] if system is not None else []) + [
        {"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


CONVERSATIONS = [
    said("What is a rank?", "A process that trains."),
    said("Hi", "Hello! How are you?", "Fine, and you?", "Well: 12 + 30 = 42.", system="Be short."),
    said("Grüße, 世界 🙂", "naïve\n\n  code():\n    x = 1\n", "", "é"),
    said("no answer yet", "yes ", "and now?"),
    said(" \t blanks \u00a0\n", "ends with newlines\n\n"),
]


def main():
    with open(os.path.join(HERE, "tokenizers.json"), encoding="utf-8") as file:
        golden = json.load(file)
    forms = {}
    for name, division in (("chatml", "gpt2"), ("llama3", "llama3")):
        whole = json.loads(json.dumps(golden["tokenizer"]))
        whole["pre_tokenizer"] = golden["cases"][division]["pre_tokenizer"]
        own = Tokenizer.from_str(json.dumps(whole))
        own.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS[name]])
        fast = PreTrainedTokenizerFast(tokenizer_object=own, chat_template=TEMPLATES[name])
        cases = []
        for messages in CONVERSATIONS:
            made = fast.apply_chat_template(messages, tokenize=True, return_dict=True,
                                            return_assistant_tokens_mask=True)
            cases.append({"tokens": made["input_ids"], "answer": made["assistant_masks"]})
        forms[name] = {"division": division, "specials": SPECIALS[name], "template": TEMPLATES[name], "cases": cases}
    write("chat", {"conversations": CONVERSATIONS, "forms": forms}, separators=(",", ":"))


if __name__ == "__main__":
    main()
