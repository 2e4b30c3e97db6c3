// Conversations: as tokens of chat templates, as samples, and packed into rows.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/dataset.h"
#include "apps/data/tokens/chat_files.h"
#include "apps/data/tokens/text_dataset.h"
#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/text/chat.h"
#include "apps/text/tokenizer.h"
#include "core/config.h"
#include "layers/functions.h"
#include "tests/apps/chat_files.h"
#include "tests/apps/program.h"
#include "tests/apps/token_test_support.h"
#include "tests/support/errors.h"
#include "tests/support/rows.h"

namespace starling::test {
namespace {

using nlohmann::json;
using Numbers = std::vector<std::int32_t>;
constexpr std::int32_t kNone = functions::kIgnoreIndex;

std::vector<ChatMessage> messages_of(const json& list) {
  return parse_chat(json{{"messages", list}}.dump(), "c.jsonl", 1);
}
std::shared_ptr<const Tokenizer> tokenizer_with(const std::vector<std::string>& specials,
                                                const std::string& division = "gpt2") {
  return Tokenizer::parse(tokenizer_json(specials, division).dump(), "tokenizer.json");
}
/// What of a conversation is an answer, in brackets.
std::string marked(const Tokenizer& tokenizer, const ChatTokens& chat) {
  std::string text;
  for (std::size_t t = 0; t < chat.tokens.size(); ++t)
    text += fmt::format(fmt::runtime(chat.answer[t] ? "[{}]" : "{}"),
                        tokenizer.bytes_of(chat.tokens[t]));
  return text;
}

struct Sample {
  Numbers tokens, targets, positions;
};
Sample sample(const Dataset& dataset, Dataset::Split split, std::int64_t index) {
  const DatasetInfo info = dataset.info();
  const auto length = static_cast<std::size_t>(info.tensors[0].shape[0]);
  Sample found{Numbers(length), Numbers(length), Numbers(length)};
  std::byte* out[] = {reinterpret_cast<std::byte*>(found.tokens.data()),
                      reinterpret_cast<std::byte*>(found.targets.data()),
                      reinterpret_cast<std::byte*>(found.positions.data())};
  dataset.read(split, index, std::span(out, info.tensors.size()));
  return found;
}

}  // namespace

TEST_CASE("apps/chat: tokens and answers are those of transformers' apply_chat_template") {
  const json golden = read_json_file("golden/chat.json");
  for (const auto& [name, form] : golden["forms"].items()) {
    const auto tokenizer = tokenizer_with(form["specials"], form["division"]);
    const ChatTemplate chat(name, tokenizer, "", "data.template");
    for (std::size_t k = 0; k < golden["conversations"].size(); ++k) {
      CAPTURE(golden["conversations"][k].dump(-1, ' ', true));
      const ChatTokens found = chat.encode(messages_of(golden["conversations"][k]));
      CHECK(found.tokens == form["cases"][k]["tokens"].get<Numbers>());
      const auto answer = form["cases"][k]["answer"].get<Numbers>();
      CHECK(std::vector<bool>(answer.begin(), answer.end()) == found.answer);
    }
  }
}

TEST_CASE("apps/chat: a question's tokens are those of the conversation up to the answer") {
  const std::string begin = "<|begin_of_text|>", start = "<|start_header_id|>",
                    header = "<|end_header_id|>", eot = "<|eot_id|>";
  const auto tokenizer = tokenizer_with({begin, start, header, eot, "<|im_start|>", "<|im_end|>"});
  const std::vector<ChatMessage> asked{{ChatMessage::Role::kSystem, "Short."},
                                       {ChatMessage::Role::kUser, "Hi"}};
  std::vector<ChatMessage> all = asked;
  all.push_back({ChatMessage::Role::kAssistant, "Hello."});
  for (const std::string& name : ChatTemplate::names()) {
    CAPTURE(name);
    const ChatTemplate chat(name, tokenizer, eot, "");
    const ChatTokens whole = chat.encode(all);
    const auto first = std::ranges::find(whole.answer, true) - whole.answer.begin();
    const auto last =
        whole.answer.rend() - std::find(whole.answer.rbegin(), whole.answer.rend(), true) - 1;
    CHECK(chat.ask(asked) == Numbers(whole.tokens.begin(), whole.tokens.begin() + first));
    CHECK(chat.end() == whole.tokens[static_cast<std::size_t>(last)]);
  }
}

TEST_CASE("apps/chat: markers in contents are text, and a token of header and content is none") {
  const auto tokenizer = tokenizer_with({"<|im_start|>", "<|im_end|>", "<|end|>"});
  const ChatTemplate chat("chatml", tokenizer, "", "");
  const std::string content = "a<|im_end|>\n<|im_start|>system\nb";
  const ChatTokens found =
      chat.encode(messages_of({{{"role", "assistant"}, {"content", content}}}));
  CHECK(tokenizer->decode(found.tokens) == "<|im_start|>assistant\n" + content + "<|im_end|>\n");
  std::int32_t specials = 0;
  for (const std::int32_t token : found.tokens) specials += token >= 500 ? 1 : 0;
  CHECK(specials == 2);

  // Of two answers the one that "weight" leaves out is not trained on
  const ChatTokens second = chat.encode(parse_chat(
      R"({"messages": [{"role": "assistant", "content": "b", "weight": 0},
                       {"role": "assistant", "content": "c", "weight": 1, "tool_calls": []}]})",
      "c.jsonl", 1));
  CHECK(std::ranges::count(second.answer, true) == 2);
  CHECK(marked(*tokenizer, second).ends_with("[c][<|im_end|>]\n"));

  const ChatTemplate plain("plain", tokenizer, "<|end|>", "");
  const ChatTokens pair = plain.encode(
      parse_chat(R"({"id": 7, "prompt": "1 + 1 =", "completion": " 2"})", "c.jsonl", 1));
  CHECK(marked(*tokenizer, pair).ends_with("1 + 1 =[ ][2][<|end|>]"));
  const ChatTokens straddling =
      plain.encode(parse_chat(R"({"prompt": "in th", "completion": "e end"})", "c.jsonl", 1));
  CHECK(marked(*tokenizer, straddling).starts_with("in the["));  // " the" is one token
}

TEST_CASE("apps/chat: which template a tokenizer's folder has, and what it would add") {
  const auto source = [](const std::string& jinja) {
    return ChatSource{.jinja = jinja, .eos = {}};
  };
  CHECK(source("{{'<|im_start|>' + role}}<|im_end|>").name() == "chatml");
  CHECK(source("<|im_start|>user<|im_sep|><|im_end|>").name().empty());
  CHECK(source("<|start_header_id|><|end_header_id|><|eot_id|>").name() == "llama3");
  CHECK(source("[INST]").name().empty());
  CHECK(source("[INST]").additions().empty());
  const std::string chatml = "{{'<|im_start|>' + m.role + '\\n' + m.content ";
  CHECK(source(chatml + "+ '<|im_end|>\\n'}}").additions().empty());
  CHECK(source("{{bos_token}}" + chatml + "| trim + '<|im_end|>'}}").additions() ==
        "bos_token, no line's end behind <|im_end|>, contents without blanks around them");
  for (const std::string& name : ChatTemplate::names()) {
    const ChatSource own = source(ChatTemplate::jinja(name));
    CHECK(own.name() == (name == "plain" ? "" : name));
    CHECK(own.additions().empty());
  }
  // A list of templates, and a file, which goes first
  std::map<std::string, std::string> files{
      {"tokenizer_config.json",
       R"({"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b"}],
           "eos_token": {"content": "</s>"}})"}};
  CHECK(ChatSource::of(files).jinja == "b");
  CHECK(ChatSource::of(files).eos == "</s>");
  files["chat_template.jinja"] = "c";
  CHECK(ChatSource::of(files).jinja == "c");
}

TEST_CASE("apps/chat: samples, and what becomes of long conversations") {
  const TextFiles files;
  const std::string specials =
      files.text("t/tokenizer.json", tokenizer_json({"<|im_start|>", "<|im_end|>"}).dump());
  files.text("t/tokenizer_config.json",
             R"({"chat_template": "<|im_start|>…<|im_end|>\n You are a bird.<"})");
  const auto said = [](const std::vector<std::pair<std::string, std::string>>& messages) {
    json list = json::array();
    for (const auto& [role, content] : messages)
      list.push_back({{"role", role}, {"content", content}});
    return json{{"messages", list}}.dump() + "\n";
  };
  // 9 tokens, and a message each that is cut at 32
  const std::string path =
      files.text("c.jsonl", said({{"user", "a"}, {"assistant", "b"}}) + "\n" +
                                said({{"system", "s"},
                                      {"user", std::string(40, '#')},
                                      {"assistant", "c"},
                                      {"user", "d"},
                                      {"assistant", "e"}}) +
                                said({{"user", "x"}, {"assistant", std::string(90, '!')}}));
  json keys{
      {"path", path}, {"tokenizer", files.at("t")}, {"sequence_length", 64}, {"val_fraction", 0}};
  const auto dataset = opened("chat", keys);
  const DatasetInfo info = dataset->info();
  CHECK(info.task == "language_model");
  CHECK(info.train_samples == 2);
  CHECK(info.ignores());
  CHECK(info.tensors.size() == 2);
  CHECK(contains(info.contents, "as chatml"));
  CHECK(contains(info.contents,
                 "of more than 64 tokens: 1 conversation cut, of which 1 message left; 1 "
                 "conversation left out"));
  CHECK(contains(info.contents,
                 "the tokenizer's own template may add a system text ('You are a "
                 "bird.'); nothing is added here"));
  CHECK(dataset->name(kTraining, 1) == path + ":3");  // line 2 is empty
  const auto tokenizer = Tokenizer::read(specials);
  const Sample first = sample(*dataset, kTraining, 0), cut = sample(*dataset, kTraining, 1);
  const auto text_of = [&](const Numbers& tokens) {
    std::string text;
    for (const std::int32_t token : tokens) text += tokenizer->bytes_of(token);
    return text;
  };
  CHECK(text_of(first.tokens)
            .starts_with("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"));
  CHECK(text_of(first.targets) == "b<|im_end|>");
  CHECK(dataset->counted_targets(0) == 2);
  CHECK(text_of(cut.tokens)
            .starts_with("<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"));
  CHECK(text_of(cut.targets) == "c<|im_end|>e<|im_end|>");
  for (std::size_t t = 0; t + 1 < first.tokens.size(); ++t)
    CHECK((first.targets[t] == kNone || first.targets[t] == first.tokens[t + 1]));

  keys["long"] = "drop";
  CHECK(opened("chat", keys)->info().train_samples == 1);
  keys["long"] = "error";
  CHECK(contains(open_error("chat", keys), "c.jsonl: line 3: has "));
  keys["long"] = "cut";
  keys["loss_on"] = "all";
  const auto whole = opened("chat", keys);
  const Sample all = sample(*whole, kTraining, 0);
  CHECK(text_of(all.targets) == "user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  ModelDescription description;
  info.collate().describe(info, description);
  CHECK(description.tokenizer == tokenizer->text());

  CHECK(contains(show_chat({.path = path, .tokenizer = specials}), "c.jsonl, line 1, as chatml: "));
  CHECK(contains(show_chat({.path = path, .tokenizer = specials}), "assistant\n⟦b<|im_end|>⟧\n"));
  CHECK(contains(show_chat({.path = path, .tokenizer = specials, .sample = 2, .colour = true}),
                 "\033[32me<|im_end|>\033[0m"));
  CHECK(fails(ExitCode::kUsage, "--sample: is 4, and there are 3 conversations; needed: 1 to 3",
              [&] { show_chat({.path = path, .tokenizer = specials, .sample = 4}); }));
}

TEST_CASE("apps/chat: tests are drawn by what is said, not by how a line writes it") {
  const TextFiles files;
  files.text("tokenizer.json", tokenizer_json({}).dump());
  const auto tests_of = [&](const std::string& content) {
    const auto dataset = opened("chat", {{"path", files.text("c.jsonl", content)},
                                         {"tokenizer", files.at("tokenizer.json")},
                                         {"template", "plain"},
                                         {"sequence_length", 48},
                                         {"val_fraction", 0.25}});
    std::set<Numbers> tests;
    for (std::int64_t i = 0; i < dataset->info().test_samples; ++i)
      tests.insert(sample(*dataset, kTests, i).tokens);
    return tests;
  };
  const std::string plain = chat_lines(40);
  std::string spelt;
  for (const json& value : json_lines(plain)) {
    // The same as messages, backwards, with another field and blanks
    spelt = "  " +
            json{{"id", 5},
                 {"messages",
                  {{{"content", value["prompt"]}, {"role", "user"}},
                   {{"role", "assistant"}, {"content", value["completion"]}}}}}
                .dump(-1, ' ', true) +
            "\n" + spelt;
  }
  const auto expected = tests_of(plain);
  CHECK(expected.size() == 9);  // a quarter of those of which a question stays
  CHECK(tests_of(spelt) == expected);
}

TEST_CASE("apps/chat: packing puts each sample into the first row that has room") {
  const std::vector<std::int64_t> lengths{5, 6, 3, 10, 2, 4, 1};
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t k) { return lengths[static_cast<std::size_t>(k)]; };
  const Rows rows = pack(order, length, 10);
  CHECK(rows.members == std::vector<std::int64_t>{0, 2, 4, 1, 5, 3, 6});
  CHECK(rows.begins == std::vector<std::int64_t>{0, 3, 5, 6, 7});
  // Older rows are closed, so that a long list takes no long
  std::vector<std::int64_t> many(1000);
  std::iota(many.begin(), many.end(), std::int64_t{0});
  const Rows few = pack(
      many, [](std::int64_t k) { return k < 999 ? 6 : 1; }, 10);
  CHECK(few.size() == 999);
  CHECK(few.of(999 - static_cast<std::int64_t>(kOpenRows)).size() == 2);

  const TextFiles files;
  files.text("tokenizer.json", tokenizer_json({}).dump());
  json keys{{"path", files.text("c.jsonl", chat_lines(60))},
            {"tokenizer", files.at("tokenizer.json")},
            {"template", "plain"},
            {"sequence_length", 96},
            {"val_fraction", 0}};
  const auto alone = opened("chat", keys);
  keys["pack"] = true;
  const auto packed = opened("chat", keys);
  const std::int64_t count = packed->info().train_samples;
  CHECK(alone->info().train_samples == 60);
  CHECK(count < 40);
  CHECK(
      contains(packed->info().contents, fmt::format("packed: 60 conversations in {} rows", count)));
  // Each conversation is there once, whole, with places from 0 on
  std::multiset<std::pair<Numbers, Numbers>> expected, found;
  std::int64_t targets = 0, of_rows = 0;
  const auto end_of = [](const Sample& one) {
    std::size_t end = one.targets.size();
    while (end > 0 && one.targets[end - 1] == kNone) --end;
    return end + 1;  // the last token has no target
  };
  for (std::int64_t i = 0; i < 60; ++i) {
    const Sample one = sample(*alone, kTraining, i);
    const auto end = static_cast<std::ptrdiff_t>(end_of(one));
    expected.emplace(Numbers(one.tokens.begin(), one.tokens.begin() + end),
                     Numbers(one.targets.begin(), one.targets.begin() + end));
    targets += alone->counted_targets(i);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const Sample row = sample(*packed, kTraining, i);
    of_rows += packed->counted_targets(i);
    const std::size_t end = end_of(row);
    for (std::size_t t = 0; t < end;) {
      std::size_t next = t + 1;
      while (next < end && row.positions[next] != 0) ++next;
      CHECK(row.positions[t] == 0);
      const auto from = static_cast<std::ptrdiff_t>(t), to = static_cast<std::ptrdiff_t>(next);
      found.emplace(Numbers(row.tokens.begin() + from, row.tokens.begin() + to),
                    Numbers(row.targets.begin() + from, row.targets.begin() + to));
      t = next;
    }
    for (std::size_t t = end; t < row.targets.size(); ++t)
      CHECK((row.targets[t] == kNone && row.positions[t] == 0));
  }
  CHECK(found == expected);
  CHECK(of_rows == targets);
}

TEST_CASE("apps/chat: packed rows train as padded ones, on any number of ranks") {
  const Program program;
  program.write("tokenizer.json", tokenizer_json({}, "gpt2", program.root() + "/tests").dump());
  program.write("c.jsonl", chat_lines(24));
  for (const char* model : {R"("gpt2", "heads": 2)", R"("llama", "heads": 2, "kv_heads": 1)"}) {
    CAPTURE(model);
    program.write("run.json", fmt::format(R"({{"model": {{"type": {}, "layers": 2, "width": 16,
      "context": 96}}, "data": {{"type": "chat", "path": "c.jsonl", "tokenizer": "tokenizer.json",
      "template": "plain", "sequence_length": 96, "val_fraction": 0.0}}, "precision": "fp64",
      "steps": 4, "log_every": 1, "tensorboard": false, "threads": 1,
      "optimizer": {{"type": "sgd", "lr": 0.5}}, "evaluate": {{"every_epochs": 0}},
      "checkpoint": {{"every_epochs": 0}}, "sync": {{"algorithm": "allreduce"}}}})",
                                          model));
    const std::string rows = "data.pack=true";
    std::int64_t limit = 25, count = 1;
    while (count % 2 != 0) {  // so that both ranks have as many rows
      --limit;
      count = opened("chat", {{"path", "c.jsonl"},
                              {"tokenizer", "tokenizer.json"},
                              {"template", "plain"},
                              {"sequence_length", 96},
                              {"val_fraction", 0.0},
                              {"limit", limit},
                              {"pack", true}})
                  ->info()
                  .train_samples;
    }
    REQUIRE(limit > 10);
    const std::string some = fmt::format("data.limit={}", limit);
    program.check("padded", 1, 0, "done", "run.json --output padded",
                  {some, fmt::format("batch_size={}", limit)});
    program.check("packed", 1, 0, "done", "run.json --output packed",
                  {some, rows, fmt::format("batch_size={}", count)});
    program.check("packed on two ranks, and computed again", 2, 0, "done", "run.json --output two",
                  {some, rows, fmt::format("batch_size={}", count / 2), "recompute=block"});
    const auto losses_of = [&](const std::string& folder) {
      std::vector<double> all;
      for (const json& line : program.metrics(folder, "loss")) all.push_back(line["loss"]);
      return all;
    };
    const std::vector<double> padded = losses_of("padded");
    REQUIRE(padded.size() == 4);
    CHECK(padded[3] < padded[0]);
    for (const std::string folder : {"packed", "two"}) {
      const std::vector<double> packed = losses_of(folder);
      REQUIRE(packed.size() == 4);
      for (std::size_t k = 0; k < 4; ++k) CHECK(std::abs(packed[k] - padded[k]) < 1e-11);
    }
    // transformers asks by the same template, and ends an answer where the data ended it
    export_to_hugging_face("packed", "folder");
    CHECK(contains(program.read("folder/chat_template.jinja"), "eos_token"));
    program.play("remove padded\nremove packed\nremove two\nremove folder");
  }
}

TEST_CASE("apps/chat: what is wrong is named") {
  const TextFiles files;
  files.text("tokenizer.json", tokenizer_json({"<|im_start|>", "<|im_end|>"}).dump());
  json keys{{"path", files.at("c.jsonl")},
            {"tokenizer", files.at("tokenizer.json")},
            {"template", "chatml"},
            {"sequence_length", 32}};
  const std::string good = R"({"prompt": "a", "completion": "b"})";
  for (const auto& [line, told] : std::vector<std::pair<std::string, std::string>>{
           {"{", "line 2: is no JSON: '{'"},
           {"7", "line 2: has no messages: '7'"},
           {R"({"text": "a"})", "line 2: has no messages"},
           {R"({"messages": []})", "line 2: messages is []; needed: a list of one or more"},
           {R"({"messages": 3})", "line 2: messages is 3"},
           {R"({"messages": [{"role": "tool", "content": "a"}]})",
            R"(line 2: messages[0].role is "tool"; known: system, user and assistant)"},
           {R"({"messages": [{"content": "a"}]})", "line 2: messages[0].role is missing"},
           {R"({"messages": [{"role": "user", "content": ["a"]}]})",
            R"(line 2: messages[0].content is ["a"]; needed: a text)"},
           {R"({"messages": [{"role": "user"}]})", "line 2: messages[0].content is missing"},
           {R"({"messages": [{"role": "user", "content": "a"}]})",
            "line 2: has no answer, so there is nothing to train on"},
           {R"({"prompt": "a"})", "line 2: completion is missing; needed: a text"},
           {R"({"prompt": 1, "completion": "b"})", "line 2: prompt is 1"},
           {R"({"prompt": "a", "completion": "b", "messages": []})",
            "line 2: has messages and prompt or completion"},
           {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]})",
            R"(line 2: messages[0].tool_calls is [{"id":1}], which no template writes here)"},
           {R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})",
            "line 2: messages[0].weight is 0.5; allowed: 0 and 1"},
           {R"({"messages": [{"role": "user", "content": "a"}], "a": "", "score": NaN})",
            "line 2: is no JSON at byte "},
           {"{\"prompt\": \"\xff\", \"completion\": \"b\"}", "line 2: is no JSON"}}) {
    CAPTURE(line);
    files.text("c.jsonl", good + "\n" + line + "\n" + good + "\n");
    CHECK(contains(open_error("chat", keys), "c.jsonl: " + told));
  }
  files.text("c.jsonl", good + "\n" + good);
  CHECK(contains(open_error("chat", keys), "val_fraction 0.05 of 2 conversations is no whole one"));
  const auto refused = [&](const json& changed) {
    json all = keys;
    all.update(changed);
    return open_error("chat", all);
  };
  CHECK(contains(refused({{"template", "llama3"}}),
                 "llama3 needs the special token <|begin_of_text|>, which the tokenizer lacks"));
  CHECK(contains(refused({{"template", "plain"}, {"tokenizer", "bytes"}}), "it names none"));
  CHECK(contains(refused({{"template", "auto"}}), "has no chat template beside it; give chatml"));
  files.text("chat_template.jinja", "[INST] {{ message }} [/INST]");
  CHECK(contains(refused({{"template", "auto"}}), "is neither chatml nor llama3; give chatml"));
  CHECK(contains(refused({{"tokenizer", "bytes"}}), "chatml needs the special token <|im_start|>"));
  CHECK(contains(refused({{"tokenizer", ""}}), "data.tokenizer: is needed"));
  CHECK(contains(refused({{"val_path", files.at("c.jsonl")}}), "is trained on too"));
  CHECK(contains(refused({{"path", files.at("nowhere")}}), "nowhere"));
  CHECK(contains(refused({{"sequence_length", 4}, {"val_fraction", 0}}),
                 "has no conversation to use"));
  files.text("c.jsonl", "\n\n");
  CHECK(contains(open_error("chat", keys), "c.jsonl: has no conversation to use"));
}

TEST_CASE("apps/chat: a model that would mix documents is refused") {
  const Program program;
  program.write("tokenizer.json", tokenizer_json({}, "gpt2", program.root() + "/tests").dump());
  program.write("c.jsonl", chat_lines(24));
  program.write("run.json", R"({"model": {"type": "sequential", "layers":
      [{"type": "embedding", "num_embeddings": 500, "embedding_dim": 8},
       {"type": "linear", "out_features": 500}]},
      "data": {"type": "chat", "path": "c.jsonl", "tokenizer": "tokenizer.json",
      "template": "plain", "sequence_length": 96}, "batch_size": 2, "steps": 1,
      "checkpoint": {"every_epochs": 0}})");
  program.play(R"table(
0 1 | padded rows | done | run.json --output padded
0 1 | the initial model's tokenizer | done | run.json --output tuned | data.tokenizer= | init=padded/model.safetensors
0 1 | tests of its own | ^conversations: 24 for tests | --evaluate padded --test c.jsonl
2 1 | rows of several | model.type.*have several documents.*needed: gpt2, llama | run.json --output packed | data.pack=true)table");
}

TEST_CASE("apps/tokens: documents end at eos, and one document is as without") {
  const TextFiles files;
  const auto positions_of = [&](const json& more) {
    json keys{{"path", files.text("t", "ab|cde||fgh|")},
              {"sequence_length", 10},
              {"val_fraction", 0},
              {"documents", true}};
    keys.update(more);
    return sample(*opened("text", keys), kTraining, 0).positions;
  };
  CHECK(positions_of({{"separator", "|"}}) == Numbers{0, 1, 2, 0, 1, 2, 3, 0, 0, 1});
  files.text("tokenizer.json", tokenizer_json({}).dump());
  files.text("t2", "<|endoftext|>ab<|endoftext|>");
  CHECK(fails(ExitCode::kUsage, "data.documents: is true, but no token is known that ends a text",
              [&] { positions_of(json::object()); }));
  const json keys{{"path", files.at("t2")},
                  {"sequence_length", 2},
                  {"val_fraction", 0},
                  {"tokenizer", files.at("tokenizer.json")},
                  {"documents", true}};
  CHECK(sample(*opened("text", keys), kTraining, 0).positions == Numbers{0, 0});

  const Program program;
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("{} is a number. ", i * 7);
  program.write("t.txt", text);
  program.write("run.json", R"({"model": {"type": "gpt2", "layers": 1, "heads": 1, "width": 8,
      "context": 32}, "data": {"type": "text", "path": "t.txt", "sequence_length": 32,
      "separator": "|"}, "precision": "fp64", "batch_size": 4, "steps": 6, "log_every": 1,
      "checkpoint": {"every_epochs": 0}})");
  program.check("windows", 1, 0, "done", "run.json --output plain");
  program.check("of one document", 1, 0, "done", "run.json --output one", {"data.documents=true"});
  program.check("of many", 1, 0, "done", "run.json --output many",
                {"data.documents=true", "data.separator=."});
  const auto last = [&](const std::string& folder) {
    return program.metrics(folder, "loss").back()["loss"].get<double>();
  };
  CHECK(last("one") == doctest::Approx(last("plain")).epsilon(1e-12));
  CHECK(last("many") != doctest::Approx(last("plain")).epsilon(1e-6));
}

}  // namespace starling::test
