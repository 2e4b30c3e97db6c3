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
if sys.argv[1] == "--score":
    import random

    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    folder, predict = sys.argv[2:]
    draw, text = random.Random(1), open("text.txt", encoding="utf-8").read()

    def some(most):
        at = draw.randrange(len(text) - most)
        return text[at:at + draw.randrange(1, most)]

    # Contexts that end in blanks, that are none, and longer than the model's 32 tokens
    pairs = [("a" + some(60) + draw.choice(["", " ", "\n", " \u3000", "\x1f", "\u200b"]), some(20)) for _ in range(40)]
    pairs += [("b" + some(400), some(30)) for _ in range(10)]
    questions = [{"query": "c" + some(90), "choices": [some(12).strip() or "größer" for _ in range(4)], "gold": draw.randrange(4)} for _ in range(30)]
    model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if folder.endswith("-ends"):
        tokenizer.bos_token = "!"  # as its post-processor has it; the other folder has none
        pairs += [("", some(20)) for _ in range(10)] + [("", "! and"), ("! and", " so")]
    lm = HFLM(pretrained=model, tokenizer=tokenizer, prefix_token_id=tokenizer.convert_tokens_to_ids("!"), batch_size=1)

    def counts(context, rest):
        """Whether more is left than went into the context's last token, which it insists on."""
        return not context or len(lm._encode_pair(context, rest)[1]) > 0

    pairs = [pair for pair in pairs if counts(*pair)]
    theirs = lm.loglikelihood([Instance("loglikelihood", {}, pair, k) for k, pair in enumerate(pairs)], disable_tqdm=True)
    for delimiter in (" ", ""):
        asked = [one for one in questions if all(counts(one["query"], delimiter + choice) for choice in one["choices"])]
        assert len(asked) > 20, len(asked)
        with open("lines.jsonl", "w") as file:
            for context, continuation in pairs:
                file.write(json.dumps({"context": context, "continuation": continuation}) + "\n")
            for question in asked:
                file.write(json.dumps({**question, "delimiter": delimiter}) + "\n")
        with open("questions.json", "w") as file:
            json.dump(asked, file)
        task = ConfigurableTask(config={
            "task": "questions", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "questions.json"}}, "test_split": "test",
            "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "choices", "doc_to_target": "gold",
            "target_delimiter": delimiter, "metric_list": [{"metric": metric} for metric in ("acc", "acc_norm", "acc_bytes")]})
        found = simple_evaluate(model=lm, tasks=[task], log_samples=True, bootstrap_iters=0)
        run = subprocess.run([predict, folder, "--score", "lines.jsonl"], check=True, capture_output=True, text=True)
        ours = [json.loads(line) for line in run.stdout.splitlines()]
        scores = ours[:len(pairs)] + [choice for question in ours[len(pairs):-1] for choice in question["choices"]]
        samples = sorted(found["samples"]["questions"], key=lambda sample: sample["doc_id"])
        wanted = theirs + [answer[0] for sample in samples for answer in sample["resps"]]
        assert len(scores) == len(wanted), (len(scores), len(wanted))
        for k, (score, (logprob, greedy)) in enumerate(zip(scores, wanted)):
            assert abs(score["logprob"] - logprob) <= 1e-4 * max(1, abs(logprob)) and score["greedy"] == bool(greedy), (k, score, logprob, greedy)
        for metric in ("acc", "acc_norm", "acc_bytes"):
            assert ours[-1][metric] == found["results"]["questions"][f"{metric},none"], (metric, ours[-1], found["results"])
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
