#include "weights/folder_contents.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace sixfold {

namespace fs = std::filesystem;

namespace {

constexpr int kEntriesMax = 10000;
constexpr size_t kNamesMax = 4;

struct Contents {
  std::vector<std::string> gguf, gguf_first_parts, safetensors, adapters, pytorch, folders;
  bool config = false, tokenizer = false, empty = true;
};

bool EndsWithAny(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

Contents Read(const fs::path& folder) {
  Contents out;
  std::error_code error;
  int entries = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && entries < kEntriesMax; it.increment(error), ++entries) {
    const std::string name = it->path().filename().string();
    out.empty = false;
    std::error_code ignored;
    const bool first_part = name.find("-00001-of-") != std::string::npos;
    if (it->is_directory(ignored)) {
      if (fs::exists(it->path() / "config.json", ignored)) out.folders.push_back(name);
    } else if (name.ends_with(".gguf")) {
      (first_part ? out.gguf_first_parts : out.gguf).push_back(name);
    } else if (name.starts_with("adapter_model.")) {
      out.adapters.push_back(name);
    } else if (name.ends_with(".safetensors")) {
      out.safetensors.push_back(name);
    } else if (name != "training_args.bin" && EndsWithAny(name, {".bin", ".pt", ".pth", ".ckpt"})) {
      out.pytorch.push_back(name);
    } else if (name == "config.json") {
      out.config = true;
    } else if (name == "tokenizer.json" || name == "tokenizer.model" || name == "vocab.json") {
      out.tokenizer = true;
    }
  }
  for (auto* names : {&out.gguf, &out.gguf_first_parts, &out.safetensors, &out.adapters, &out.pytorch, &out.folders})
    std::sort(names->begin(), names->end());
  return out;
}

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kNamesMax ? text + ", ..." : text;
}

// "; it holds …: what to do".
std::string Advice(const Contents& found, const fs::path& folder) {
  const bool is_shard = !found.safetensors.empty() && found.safetensors.front().find("-of-") != std::string::npos;
  if (!found.gguf_first_parts.empty()) {
    return "; it holds a GGUF in parts: name the first part, " + (folder / found.gguf_first_parts.front()).string();
  }
  if (!found.gguf.empty() && found.gguf.front().find("-of-") != std::string::npos)
    return "; it holds parts of a GGUF without the first one (-00001-of-): " + Listed(found.gguf);
  if (is_shard && found.gguf.empty())
    return "; it holds shards without model.safetensors.index.json, which says what is where: " + Listed(found.safetensors);
  if (!found.gguf.empty() || !found.safetensors.empty()) {
    std::vector<std::string> files = found.gguf;
    files.insert(files.end(), found.safetensors.begin(), found.safetensors.end());
    return "; to use one of its files, name it: " + Listed(files);
  }
  if (!found.adapters.empty()) {
    return "; it holds a LoRA adapter (" + Listed(found.adapters) +
           "), which changes a base model and is none: merge it into that model first (peft's merge_and_unload) and name the result";
  }
  if (!found.pytorch.empty())
    return "; it holds PyTorch weights (" + Listed(found.pytorch) + "), which are not read: convert them to safetensors, or get them in that form";
  if (!found.folders.empty()) return "; its folders with a config.json are " + Listed(found.folders) + ": name one of them";
  if (found.config || found.tokenizer) {
    return std::string("; it holds ") + (found.config ? "a config" : "") + (found.config && found.tokenizer ? " and " : "") +
           (found.tokenizer ? "a tokenizer" : "") + " without weights: fetch the model's .safetensors files too";
  }
  return found.empty ? "; it is empty" : "; nothing in it belongs to a model";
}

}  // namespace

Status CheckHoldsWeights(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(folder / name, error)) return OkStatus();
  }
  fs::directory_iterator readable(folder, error);
  if (error) return InvalidFile(folder.string() + ": " + error.message());
  return InvalidFile(folder.string() + ": no model is in this folder: it holds neither model.safetensors nor model.safetensors.index.json" +
                     Advice(Read(folder), folder));
}

}  // namespace sixfold
