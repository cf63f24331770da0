#include "text/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "text/chat_template.h"

namespace sixfold {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder of its own, removed at the end.
class HfFolder : public ::testing::Test {
 protected:
  HfFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("sixfold_hf_folder_" + std::string(info->name()) + std::to_string(::getpid()));
    fs::create_directories(folder_);
    Write("tokenizer.json", R"({"version":"1.0","model":{"type":"WordLevel","vocab":{"x":0,"</s>":1},"unk_token":"x"}})");
  }
  ~HfFolder() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  Result<std::unique_ptr<Tokenizer>> Load() { return Tokenizer::FromHfFolder(folder_.string()); }
  std::string Template(const char* name = "default") {
    auto tokenizer = Load();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    const std::string* found = tokenizer.ok() ? (*tokenizer)->FindChatTemplate(name) : nullptr;
    return found == nullptr ? "(none)" : *found;
  }

  fs::path folder_;
};

TEST_F(HfFolder, NeedsOnlyTokenizerJson) {
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_FALSE((*tokenizer)->bos_id().has_value());
  EXPECT_TRUE((*tokenizer)->eos_ids().empty());
  EXPECT_EQ(SelectChatTemplate(**tokenizer, true), nullptr);
}

TEST_F(HfFolder, TakesTemplatesFromWhereTransformersWritesThem) {
  Write("chat_template.json", R"({"chat_template":"from processor"})");
  EXPECT_EQ(Template(), "from processor");
  Write("tokenizer_config.json", R"({"chat_template":"from config"})");
  EXPECT_EQ(Template(), "from processor");
  Write("chat_template.jinja", "from file");
  Write("additional_chat_templates/rag.jinja", "rag file");
  EXPECT_EQ(Template(), "from file");
  EXPECT_EQ(Template("rag"), "rag file");
}

TEST_F(HfFolder, TakesNamedTemplates) {
  Write("tokenizer_config.json",
        R"({"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]})");
  auto tokenizer = Load();
  EXPECT_EQ(*SelectChatTemplate(**tokenizer, false), "d");
  EXPECT_EQ(*SelectChatTemplate(**tokenizer, true), "t");
  Write("tokenizer_config.json", R"({"chat_template":{"default":"d2"}})");
  EXPECT_EQ(Template(), "d2");
}

// As transformers 5: the map wins over the config, unless that has an added_tokens_decoder.
TEST_F(HfFolder, ReadsRolesInBothSpellings) {
  Write("tokenizer_config.json",
        R"({"eos_token":{"content":"</s>","special":true},"bos_token":null})");
  Write("special_tokens_map.json", R"({"bos_token":{"content":"x"}})");
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->eos_id(), TokenId{1});
  EXPECT_EQ((*tokenizer)->bos_id(), TokenId{0});
  Write("special_tokens_map.json", R"({"eos_token":"x"})");
  EXPECT_EQ((*Load())->eos_id(), TokenId{0});
  Write("tokenizer_config.json", R"({"eos_token":"</s>","added_tokens_decoder":{}})");
  EXPECT_EQ((*Load())->eos_id(), TokenId{1});
}

TEST_F(HfFolder, AddsTokensThatTheVocabularyLacks) {
  Write("tokenizer_config.json",
        R"({"eos_token":"<end>","image_token":"<img>","extra_special_tokens":["<x>"]})");
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->eos_id(), TokenId{2});
  EXPECT_EQ((*tokenizer)->FindToken("<img>"), TokenId{3});
  EXPECT_EQ((*tokenizer)->FindToken("<x>"), TokenId{4});
  EXPECT_TRUE((*tokenizer)->IsSpecial(4));
  EXPECT_EQ((*(*tokenizer)->Encode("x<end>", AddSpecial::kNo)), (std::vector<TokenId>{0, 2}));
}

TEST_F(HfFolder, SaysWhetherTextsGetBosAndWhatTheConfigAsksFor) {
  Write("tokenizer_config.json",
        R"({"bos_token":"</s>","add_bos_token":true,"add_eos_token":"yes"})");
  auto tokenizer = Load();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->wants_bos(), true);
  EXPECT_EQ((*tokenizer)->wants_eos(), std::nullopt);
  EXPECT_FALSE((*tokenizer)->AddsBos());
  ASSERT_TRUE((*tokenizer)->SetAddBos(AddBos::kYes).ok());
  EXPECT_TRUE((*tokenizer)->AddsBos());
  EXPECT_EQ((*(*tokenizer)->Encode("x", AddSpecial::kYes)), (std::vector<TokenId>{1, 0}));
  EXPECT_EQ((*(*tokenizer)->Encode("x", AddSpecial::kNo)), (std::vector<TokenId>{0}));
  ASSERT_TRUE((*tokenizer)->SetAddBos(AddBos::kNo).ok());
  EXPECT_EQ((*(*tokenizer)->Encode("x", AddSpecial::kYes)), (std::vector<TokenId>{0}));
  fs::remove(folder_ / "tokenizer_config.json");
  EXPECT_EQ((*Load())->SetAddBos(AddBos::kYes).code(), StatusCode::kInvalidArgument);
}

TEST_F(HfFolder, NamesTheFileThatIsWrong) {
  const auto message = [&] {
    auto tokenizer = Load();
    EXPECT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidFile);
    return tokenizer.status().message();
  };
  Write("tokenizer_config.json", "{\"chat_template\": 5}");
  EXPECT_THAT(message(), HasSubstr("tokenizer_config.json"));
  Write("tokenizer_config.json", "[1]");
  EXPECT_THAT(message(), HasSubstr("object"));
  Write("tokenizer_config.json", "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}");
  EXPECT_THAT(message(), HasSubstr("nested deeper"));
  Write("tokenizer_config.json", "{\"bos_token\": \"\\ud800\"}");
  EXPECT_THAT(message(), HasSubstr("tokenizer_config.json"));
  Write("tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {\"content\": \"<a>\"}}}");
  EXPECT_THAT(message(), HasSubstr("added_tokens_decoder"));
  Write("tokenizer_config.json", "{}");
  Write("added_tokens.json", "{\"<a>\": \"1\"}");
  EXPECT_THAT(message(), HasSubstr("added_tokens.json"));
  fs::remove(folder_ / "added_tokens.json");
  Write("chat_template.jinja", "\xFF");
  EXPECT_THAT(message(), HasSubstr("chat_template.jinja"));
  Write("chat_template.jinja", std::string(2 << 20, 'x'));
  EXPECT_THAT(message(), HasSubstr("limit"));
  fs::remove(folder_ / "chat_template.jinja");
  Write("tokenizer.json", "{}");
  EXPECT_THAT(message(), HasSubstr("tokenizer.json"));
  fs::remove(folder_ / "tokenizer.json");
  EXPECT_THAT(message(), HasSubstr("no such file"));
}

}  // namespace
}  // namespace sixfold
