#include "text/testing/fixtures.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace sixfold::testing {
namespace {

nlohmann::json ReadJson(const std::string& file) {
  std::ifstream in("src/text/testdata/" + file);
  return nlohmann::json::parse(in);
}

}  // namespace

std::vector<TokenizerRow> ReadTokenizerRows(const std::string& file) {
  const nlohmann::json json = ReadJson(file);
  std::vector<TokenizerRow> rows;
  for (const nlohmann::json& row : json.is_array() ? json : json.at("rows")) {
    rows.push_back({.text = row.at("text"),
                    .ids = row.at("ids").get<std::vector<TokenId>>(),
                    .plain = row.value("plain", std::vector<TokenId>()),
                    .decoded = row.value("decoded", "")});
  }
  return rows;
}

GgufVocab ReadGgufVocab(const std::string& file) {
  const nlohmann::json json = ReadJson(file).at("vocab");
  GgufVocab vocab;
  vocab.model = json.at("model");
  vocab.tokens = json.at("tokens").get<std::vector<std::string>>();
  vocab.token_types = json.at("token_types").get<std::vector<int32_t>>();
  vocab.scores = json.at("scores").get<std::vector<float>>();
  vocab.bos_id = json.at("bos_id").get<TokenId>();
  vocab.eos_id = json.at("eos_id").get<TokenId>();
  vocab.unk_id = json.at("unk_id").get<TokenId>();
  vocab.add_bos = json.at("add_bos").get<bool>();
  vocab.add_eos = json.at("add_eos").get<bool>();
  vocab.remove_extra_whitespaces = json.at("remove_extra_whitespaces").get<bool>();
  return vocab;
}

GgufVocab ByteVocab(const std::string& pre, const std::vector<std::string>& merges,
                           const std::vector<std::string>& specials) {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = pre;
  int moved = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = printable ? byte : 256 + moved++;
    std::string text;
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    vocab.tokens.push_back(text);
  }
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    vocab.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
    vocab.merges.push_back(merge);
  }
  vocab.token_types.assign(vocab.tokens.size(), 1);
  for (const std::string& special : specials) {
    vocab.tokens.push_back(special);
    vocab.token_types.push_back(3);
  }
  return vocab;
}

}  // namespace sixfold::testing
