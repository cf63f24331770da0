#include "apps/commands.h"

#include "apps/option_sources.h"
#include "base/check.h"

namespace sixfold::apps {
namespace {

constexpr CommandInfo kCommands[] = {
    {.id = CommandId::kRun,
     .name = "run",
     .summary = "chat with a model in the terminal",
     .shape = {.min = 0, .max = 1, .text = "[MODEL] [PROMPT]"},
     .about = "With PROMPT, or with text on stdin, answers once and ends (bytes that are not UTF-8 "
              "become U+FFFD). Otherwise keeps a "
              "chat going: Ctrl-C stops an answer, /new starts over, /bye or Ctrl-D leaves, /help "
              "lists commands and keys. In a terminal lines are edited as in a shell, with history; "
              "a message of several lines is pasted, or its lines end in \\, or it stands between two "
              "\"\"\". Without MODEL takes the default model.",
     .examples = "  sixfold run\n"
                 "  sixfold run Qwen3-0.6B 'Why is the sky blue?'\n"
                 "  echo 'Name three rivers.' | sixfold run model.gguf --temperature 0\n"},
    {.id = CommandId::kServe,
     .name = "serve",
     .summary = "serve a model over HTTP, in OpenAI's API",
     .shape = {.text = "[MODEL]"},
     .about = "Answers /v1/chat/completions, /v1/completions, /v1/models, /health and "
              "/metrics; docs/api.md lists every field of a request. SIGTERM or Ctrl-C lets "
              "running answers end. Without MODEL takes the default model.",
     .examples =
         "  sixfold serve\n"
         "  sixfold serve Qwen3-0.6B --port 9000 --max-num-seqs 16 --served-model-name qwen\n"
         "  sixfold serve --config serve.toml --print-config\n"},
    {.id = CommandId::kInspect,
     .name = "inspect",
     .summary = "show what a model, .gguf or .safetensors file holds",
     .shape = {.text = "MODEL"},
     .about = "MODEL is a Hugging Face folder or any well-formed .gguf or .safetensors "
              "file, a model or not. Reads headers only, and the vocabulary.",
     .examples = "  sixfold inspect Qwen3-0.6B\n"
                 "  sixfold inspect model.gguf --json | jq .tensors[0]\n"},
    {.id = CommandId::kDoctor,
     .name = "doctor",
     .summary = "check this machine: cores, load, memory, limits, build",
     .shape = {.takes_model = false, .text = ""},
     .about = "One line a check, with what to do about it. Limits of affinity, cpusets and control "
              "groups count; other programs' load is watched for a moment.",
     .examples = "  sixfold doctor\n  sixfold doctor --json\n"},
    {.id = CommandId::kGenerate,
     .name = "generate",
     .summary = "continue a prompt, for scripts",
     .shape = {.text = "MODEL (--prompt TEXT | --prompt-tokens IDS)"},
     .about = "Greedy unless --temperature says otherwise. --prompt is tokenized as it is, "
              "with BOS where the tokenizer adds one and without a chat template. "
              "--prompt-tokens needs no tokenizer; \"text\" then is \"\" if there is none. "
              "--json: {\"token_ids\", \"text\", \"finish_reason\"} of the first answer, "
              "and all in \"choices\".",
     .examples =
         "  sixfold generate model.gguf --prompt 'The capital of France is' --max-tokens 8\n"
         "  sixfold generate Qwen3-0.6B --prompt-tokens 1,2,3 --max-tokens 64 --ignore-eos "
         "--json\n"},
    {.id = CommandId::kLogits,
     .name = "logits",
     .summary = "write the logits of given tokens to a file",
     .shape = {.text = "MODEL --tokens IDS --output FILE"},
     .about = "Runs the tokens as one prefill, in chunks of --max-num-batched-tokens. FILE "
              "gets one tensor `logits`, f32, [tokens, vocab].",
     .examples = "  sixfold logits Qwen3-0.6B --tokens 1,2,3 --output logits.safetensors\n"
                 "  sixfold logits model.gguf --tokens 1,2,3 --output l.safetensors --dtype f32 "
                 "--isa scalar\n"
                 "  sixfold logits model.gguf --tokens 1,2,3 --output l.safetensors -cp 2 --cp-comm-type all_gather\n"},
    {.id = CommandId::kTokenize,
     .name = "tokenize",
     .summary = "text on stdin to token ids",
     .shape = {.text = "MODEL < TEXT"},
     .about = "The whole of stdin is one text; with --jsonl each line is a JSON string, "
              "answered by {\"ids\": […]}. Special tokens written in the text are "
              "recognised. Needs only the tokenizer's files. A byte that is not UTF-8 is an error "
              "that names it, unless --lossy is given.",
     .examples = "  echo -n 'Hello, world' | sixfold tokenize model.gguf\n"
                 "  sixfold tokenize Qwen3-0.6B --no-special --jsonl < texts.jsonl\n"},
    {.id = CommandId::kDetokenize,
     .name = "detokenize",
     .summary = "token ids on stdin to text",
     .shape = {.text = "MODEL < IDS"},
     .about = "Stdin holds {\"ids\": […]}, a JSON list, or numbers with commas or spaces "
              "between them; with --jsonl one {\"ids\": […]} a line, answered by {\"text\": "
              "…}. Special tokens are written out. An id without a token is an error.",
     .examples = "  echo 1 2 3 | sixfold detokenize model.gguf\n"
                 "  sixfold detokenize Qwen3-0.6B --jsonl < ids.jsonl\n"},
    {.id = CommandId::kRender,
     .name = "render",
     .summary = "show what the chat template makes of messages",
     .shape = {.min = 1, .max = 1, .text = "MODEL MESSAGES.json"},
     .about = "MESSAGES.json (or - for stdin) is a list of messages, or an object with "
              "\"messages\" and more variables of the template, such as \"tools\"; in UTF-8. By "
              "default the text ends with the words that open the model's answer "
              "(add_generation_prompt is true) and there are no tools, no documents and no "
              "variables but the tokenizer's special tokens. Members of the object change that, "
              "and flags win over them.",
     .examples =
         "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | sixfold render model.gguf -\n"},
    {.id = CommandId::kDump,
     .name = "dump",
     .summary = "write one tensor, dequantised to f32, to a file",
     .shape = {.min = 1, .max = 1, .text = "MODEL TENSOR --output FILE"},
     .about = "FILE gets the tensor under its own name.",
     .examples = "  sixfold dump model.gguf blk.0.attn_q.weight --output q.safetensors\n"},
    {.id = CommandId::kPerplexity,
     .name = "perplexity",
     .summary = "perplexity of a text, counted as llama.cpp does",
     .shape = {.min = 1, .max = 1, .text = "MODEL FILE"},
     .about = "The text is tokenized once and cut into windows of --context tokens; what is "
              "left over is dropped. The second half of each window is scored. \"tokens\" "
              "is the number of predictions. A byte of FILE that is not UTF-8 is an error that "
              "names it, unless --lossy is given.",
     .examples = "  sixfold perplexity model.gguf text.txt --context 512 --json\n"},
    {.id = CommandId::kByteFormulas,
     .name = "bytes",
     .summary = "how many bytes a way of cutting a model moves",
     .shape = {.takes_model = false, .min = 1, .max = 1, .text = "(tp|sp|cp|ep|pp|handoff)"},
     .about = "Formulas with the numbers filled in; needs no model. tp: all-reduces of tensor "
              "parallelism, forward and backward, also with sequence parallelism; sp: its "
              "boundaries one by one; cp: the forms of context parallelism; ep: dispatch and "
              "combine of experts; pp: sends between stages; handoff: K/V from prefill to "
              "decode.",
     .examples = "  sixfold bytes tp --ranks 8 --seq 4096 --hidden 8192\n"
                 "  sixfold bytes ep --ranks 16 --nodes 2 --seq 8192 --hidden 4096 --top-k 2 "
                 "--experts 32\n"
                 "  sixfold bytes cp --ranks 4 --seq 131072 --heads 32 --kv-heads 8 --head-dim 128 "
                 "--form p2p\n"
                 "  sixfold bytes handoff --seq 2048 --layers 96 --kv-heads 96 --head-dim 128 "
                 "--bandwidth-gb-s 512\n"},
    {.id = CommandId::kLayout,
     .name = "layout",
     .summary = "show how a mesh cuts a model, and the bytes of a step",
     .shape = {.text = "MODEL --mesh SIZES"},
     .about = "Loads nothing. Prints each rank's share and what a step of --tokens rows sends; "
              "--json also the groups with their links. Layers count from 0, as in checkpoints "
              "(the files of --expert-placement count them from 1); so do heads, columns and "
              "experts. JSON ranges are [first, end).",
     .examples = "  sixfold layout Qwen3-0.6B --mesh tp4,pp2 --nodes 2\n"
                 "  sixfold layout model.gguf --mesh tp2,pp2 --tokens 64 --json\n"
                 "  sixfold layout model.gguf -tp 2 -cp 4 --cp-comm-type a2a+p2p --tokens 16384\n"},
    {.id = CommandId::kVerify,
     .name = "verify",
     .summary = "compare layouts with one rank, bit for bit",
     .shape = {.text = "MODEL"},
     .about = "Runs a prefill of sequences of many lengths and some decode steps on each "
              "layout, with ranks as threads (under mpirun: those layouts that have as many "
              "ranks as there are processes). Compares all logits with one rank, and the "
              "bytes sent with the bytes predicted. Ends with exit code 1 at the first "
              "difference, and names layout, layer and token. --balance runs nothing and "
              "prints how evenly context parallelism shares the attention out.",
     .examples = "  sixfold verify model.gguf\n"
                 "  sixfold verify Qwen3-0.6B --layouts layouts.txt --json\n"
                 "  sixfold verify model.gguf -cp 4 --prompt-lengths 1,300,1000 --decode-steps 64\n"
                 "  sixfold verify model.gguf -cp 4 --balance --tokens 16384\n"
                 "  mpirun -n 8 sixfold verify model.gguf --layouts all\n"},
    {.id = CommandId::kTrace,
     .name = "trace",
     .summary = "follow one token through the ranks of a layout",
     .shape = {.text = "MODEL (--prompt TEXT | --prompt-tokens IDS) (--token N | --last) --mesh SIZES"},
     .about = "Runs the prompt as one micro-batch on one replica, the others idle, and prints "
              "where the token went: every operation with its messages, ranks, crossings between "
              "nodes, and where keys and values stay. All of it comes from messages that were "
              "really sent (docs/journey.md). Layers count from 1, positions and ranks from 0. With --json also the run's totals, which the hops "
              "of all tokens add up to.",
     .examples = "  sixfold trace models/toy --prompt 'Where did it go?' --token 3 --mesh tp2,dp2,pp2 "
                 "--ep 4 --nodes 2\n"
                 "  sixfold trace models/toy --prompt-tokens 1,2,3,4 --last --mesh tp2,cp2 --sequence-parallel "
                 "--json\n"
                 "  sixfold trace models/toy --prompt Hello --token 0 --mesh tp2,pp2 --nodes 2 --svg -o way.svg\n"},
};
static_assert(std::size(kCommands) == kCommandCount);

}  // namespace

std::span<const CommandInfo> CommandTable() { return kCommands; }

std::string_view CommandName(CommandId command) {
  for (const CommandInfo& info : kCommands) {
    if (info.id == command) return info.name;
  }
  SF_CHECK(false);
  return "";
}

}  // namespace sixfold::apps
