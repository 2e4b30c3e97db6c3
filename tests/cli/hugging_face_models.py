"""hugging_face_models.py NAME PREDICT: whether NAME-exported, of the run NAME on data/, is in
transformers what it is to us. Saves it as NAME-saved."""
import array
import json
import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "The ranks"


def greedy(folder):
    model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0)
    return model, tokenizer, made[0, ids.shape[1]:].tolist()


if sys.argv[1] == "--ends":
    from tokenizers.processors import TemplateProcessing

    name = sys.argv[2]
    tokenizer = AutoTokenizer.from_pretrained(f"{name}-exported")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="! $A", special_tokens=[("!", tokenizer.convert_tokens_to_ids("!"))])
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(f"{name}-ends")
    AutoModelForCausalLM.from_pretrained(f"{name}-saved").save_pretrained(f"{name}-ends")
    model, _, made = greedy(f"{name}-ends")
    model.generation_config.eos_token_id = [599, made[11]]
    model.float().save_pretrained(f"{name}-ends")
    print("folder", made)
    sys.exit()
if sys.argv[1] == "--compare":
    model, tokenizer, theirs = greedy(sys.argv[2])
    ends = model.generation_config.eos_token_id
    assert theirs[-1] in ends and len(theirs) <= 12, (theirs, ends)
    run = [sys.argv[3], sys.argv[2], "--prompt", PROMPT, "--tokens", "20", "--temperature", "0", "--json"]
    ours, on = (json.loads(subprocess.run(run + more, check=True, capture_output=True).stdout) for more in ([], ["--ignore-eos"]))
    assert ours["tokens"] == theirs, (ours, theirs)
    assert ours["text"] == tokenizer.decode(theirs[:-1]), ours
    assert len(on["tokens"]) == 20 and on["tokens"][:len(theirs)] == theirs, on
    print("the same")
    sys.exit()
name, predict = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(f"{name}-exported").double()
tokenizer = AutoTokenizer.from_pretrained(f"{name}-exported")
numbers = array.array("H", open("data/val.bin", "rb").read())
inputs, targets = (torch.tensor(numbers[k:k + 16 * 32]).long().view(16, 32) for k in (0, 1))
with torch.no_grad():
    loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten()).item()
ours = json.load(open(f"{name}/summary.json"))["test_loss"]
if abs(loss - ours) > 1e-5 * ours:
    sys.exit(f"loss {ours}, in transformers {loss}")

prompt = "The ranks 1234\n\n  don't, größer"
ids = tokenizer(prompt, return_tensors="pt")
made = json.loads(subprocess.run([predict, name, "--prompt", prompt, "--tokens", "8", "--temperature", "0", "--json"], check=True, capture_output=True, text=True).stdout)
theirs = model.generate(**ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, ids["input_ids"].shape[1]:].tolist()
if theirs != made["tokens"]:
    sys.exit(f"next tokens {made['tokens']}, in transformers {theirs}")
if tokenizer.decode(theirs) != made["text"]:
    sys.exit(f"{made['text']!r}, in transformers {tokenizer.decode(theirs)!r}")
model.float().save_pretrained(f"{name}-saved")
print("the same")
