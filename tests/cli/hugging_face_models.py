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
