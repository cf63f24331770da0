#include "text/turn_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/testing/fixtures.h"

namespace sixfold {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Texts = std::vector<std::string>;

// The texts of the tokens that a template ends turns with, in a vocabulary with these control
// tokens.
Texts EndsOf(const Texts& controls, const std::string& source) {
  GgufVocab vocab = testing::ByteVocab("gpt-2", {}, controls);
  auto tokenizer = Tokenizer::FromGguf(vocab);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  Texts texts;
  for (const EndToken& end : TurnEnds(**tokenizer, source))
    texts.push_back((*tokenizer)->TokenText(end.id));
  return texts;
}

// A template of turns that all look alike: `open` with R for the role, the content, `close`.
std::string Turns(const std::string& open, const std::string& close,
                  const std::string& behind = "") {
  const size_t role = open.find('R');
  return "{% for m in messages %}" + open.substr(0, role) + "{{ m.role }}" + open.substr(role + 1) +
         "{{ m.content }}" + close + "{% endfor %}" + behind;
}

const Texts kChatMl = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
const Texts kLlama3 = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                       "<|eot_id|>"};
const Texts kPhi = {"<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"};

TEST(TurnEnds, AreTheTokensThatCloseTurnsOfPublishedFamilies) {
  EXPECT_THAT(EndsOf(kChatMl, Turns("<|im_start|>R\n", "<|im_end|>\n")), ElementsAre("<|im_end|>"));
  // With a system prompt of its own, which is closed like any turn.
  EXPECT_THAT(EndsOf(kChatMl,
                     "{% if messages[0].role != 'system' %}<|im_start|>system\nBe "
                     "kind.<|im_end|>\n{% endif %}" +
                         Turns("<|im_start|>R\n", "<|im_end|>\n")),
              ElementsAre("<|im_end|>"));
  EXPECT_THAT(EndsOf(kLlama3, "<|begin_of_text|>" +
                                  Turns("<|start_header_id|>R<|end_header_id|>\n\n", "<|eot_id|>")),
              ElementsAre("<|eot_id|>"));
  EXPECT_THAT(EndsOf(kPhi, Turns("<|R|>\n", "<|end|>\n",
                                 "{% if not add_generation_prompt %}<|endoftext|>{% endif %}")),
              ElementsAre("<|end|>"));
  EXPECT_THAT(EndsOf({"<bos>", "<start_of_turn>", "<end_of_turn>"},
                     "<bos>{% if messages[0].role == 'system' %}{{ raise_exception('no system "
                     "role') }}{% endif %}"
                     "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' "
                     "else m.role }}\n"
                     "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"),
              ElementsAre("<end_of_turn>"));
  EXPECT_THAT(EndsOf({"<s>", "<User>", "<Assistant>", "</s>"},
                     "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif "
                     "m.role == 'user' %}<User>"
                     "{{ m.content }}{% else %}<Assistant>{{ m.content.split('</think>')[-1] "
                     "}}</s>{% endif %}{% endfor %}"),
              ElementsAre("</s>"));
  EXPECT_THAT(
      EndsOf(
          {"<s>", "</s>"},
          "<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} </s>{% else %}"
          "[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"),
      ElementsAre("</s>"));
  // Roles as text, and one token behind everything.
  EXPECT_THAT(
      EndsOf({"<s>", "<|end_of_turn|>"}, "<s>" + Turns("GPT4 Correct R: ", "<|end_of_turn|>")),
      ElementsAre("<|end_of_turn|>"));
}

// <|end|> closes one message, after which the assistant goes on; <|return|> closes the answer,
// <|call|> a call.
TEST(TurnEnds, AreReturnAndCallOfHarmony) {
  const std::string harmony =
      "<|start|>system<|message|>You are.<|end|>{% for m in messages %}{% if m.tool_calls "
      "%}<|start|>assistant to=functions."
      "{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>{{ "
      "m.tool_calls[0].function.arguments|tojson }}"
      "<|call|>{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ "
      "m.content }}"
      "{{ '<|return|>' if loop.last else '<|end|>' }}{% else %}<|start|>{{ m.role }}<|message|>{{ "
      "m.content }}<|end|>"
      "{% endif %}{% endfor %}";
  EXPECT_THAT(
      EndsOf({"<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"},
             harmony),
      ElementsAre("<|return|>", "<|call|>"));
}

TEST(TurnEnds, LeaveMarksOfSingleToolCallsAlone) {
  const std::string calls =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or "
      "[] %}<tool_call>"
      "{{ c.function.arguments|tojson }}</tool_call>{% endfor %}";
  const Texts controls = {"<|im_start|>", "<|im_end|>", "<|eom_id|>", "<tool_call>",
                          "</tool_call>"};
  EXPECT_THAT(EndsOf(controls, calls + "<|im_end|>\n{% endfor %}"),
              ElementsAre("<|im_end|>", "<|im_end|>"));
  EXPECT_THAT(
      EndsOf(controls, calls + "{{ '<|eom_id|>' if m.tool_calls else '<|im_end|>' }}{% endfor %}"),
      ElementsAre("<|im_end|>", "<|eom_id|>"));
  EXPECT_THAT(
      EndsOf(controls, calls + "{{ raise_exception('one call') if m.tool_calls|length > 1 }}"
                               "{{ '<|eom_id|>' if m.tool_calls else '<|im_end|>' }}{% endfor %}"),
      ElementsAre("<|im_end|>", "<|eom_id|>"));
  EXPECT_THAT(EndsOf(controls, calls + "{% endfor %}"), IsEmpty());
}

TEST(TurnEnds, NeverAreTokensThatOpenTurns) {
  // No turn is closed, and the prompt for the next answer, or question, is there whether asked for
  // or not.
  EXPECT_THAT(EndsOf(kPhi, Turns("<|R|>\n", "\n", "<|assistant|>\n")), IsEmpty());
  EXPECT_THAT(EndsOf(kPhi, Turns("<|R|>\n", "\n", "<|user|>\n")), IsEmpty());
  EXPECT_THAT(EndsOf(kPhi, Turns("<|R|>\n", "\n")), IsEmpty());
  EXPECT_THAT(EndsOf(kLlama3, Turns("<|start_header_id|>R<|end_header_id|>\n\n", "",
                                    "<|start_header_id|>assistant<|end_header_id|>\n\n")),
              IsEmpty());
  EXPECT_THAT(EndsOf({"<|turn|>"}, Turns("<|turn|>R\n", "\n", "<|turn|>")), IsEmpty());
  // The same where turns are closed.
  EXPECT_THAT(EndsOf(kLlama3, Turns("<|start_header_id|>R<|end_header_id|>\n\n", "<|eot_id|>",
                                    "<|start_header_id|>assistant<|end_header_id|>\n\n")),
              ElementsAre("<|eot_id|>"));
  EXPECT_THAT(EndsOf({"<s>"}, "<s>" + Turns("R: ", "<s>")),
              IsEmpty() /* the token that opens texts, too */);
}

TEST(TurnEnds, AreFoundWhereTheLastAnswerIsLeftOpen) {
  EXPECT_THAT(
      EndsOf(kChatMl, Turns("<|im_start|>R\n", "{{ '' if loop.last else '<|im_end|>\n' }}")),
      ElementsAre("<|im_end|>"));
}

TEST(TurnEnds, AreFoundWhereContentsAreLists) {
  EXPECT_THAT(EndsOf(kChatMl,
                     "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content "
                     "%}{{ part.text }}"
                     "{% endfor %}<|im_end|>\n{% endfor %}"),
              ElementsAre("<|im_end|>"));
}

TEST(TurnEnds, AreNoneOfTemplatesThatFailOrCloseWithText) {
  EXPECT_THAT(EndsOf(kChatMl, "{{ raise_exception('no') }}"), IsEmpty());
  EXPECT_THAT(EndsOf(kChatMl, "{% for %}"), IsEmpty());
  EXPECT_THAT(EndsOf(kChatMl, ""), IsEmpty());
  EXPECT_THAT(EndsOf(kChatMl, "{{ messages[0].content }}<|im_end|>"), IsEmpty());
  EXPECT_THAT(EndsOf(kChatMl,
                     "{% for i in range(999999999) %}{% for j in range(999999999) %}x{% endfor "
                     "%}{% endfor %}"),
              IsEmpty());
  EXPECT_THAT(EndsOf(kChatMl, Turns("### R:\n", "\n\n")), IsEmpty());
  EXPECT_THAT(EndsOf(kChatMl, Turns("<|im_start|>R\n", " END <|im_end|>\n")), IsEmpty());
  // The marker is in the template, and no token of the vocabulary.
  EXPECT_THAT(EndsOf({"<|endoftext|>"}, Turns("<|im_start|>R\n", "<|im_end|>\n")), IsEmpty());
}

// Older conversions mark chat tokens as user-defined, which is not special.
TEST(TurnEnds, MayBeUserDefinedTokens) {
  GgufVocab vocab = testing::ByteVocab("gpt-2", {}, {"<start_of_turn>", "<end_of_turn>"});
  vocab.token_types.back() = 4;
  vocab.token_types[vocab.token_types.size() - 2] = 4;
  auto tokenizer = Tokenizer::FromGguf(vocab);
  ASSERT_TRUE(tokenizer.ok());
  const auto ends = TurnEnds(**tokenizer, Turns("<start_of_turn>R\n", "<end_of_turn>\n"));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].id, static_cast<TokenId>(vocab.tokens.size() - 1));
}

// SmolLM2's file: the token that opens turns is BOS, too, and the template has a system prompt of
// its own.
TEST(TurnEnds, AreFoundWhereBosOpensTurns) {
  GgufVocab vocab = testing::ByteVocab("gpt-2", {}, kChatMl);
  vocab.bos_id = static_cast<TokenId>(vocab.tokens.size() - 2);
  auto tokenizer = Tokenizer::FromGguf(vocab);
  ASSERT_TRUE(tokenizer.ok());
  const auto ends = TurnEnds(
      **tokenizer,
      "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" +
          Turns("<|im_start|>R\n", "<|im_end|>\n"));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].id, static_cast<TokenId>(vocab.tokens.size() - 1));
}

TEST(EndTokens, JoinThoseOfTheFilesAndOfTheTemplateWithTheirSources) {
  GgufVocab vocab =
      testing::ByteVocab("gpt-2", {}, {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>"});
  const auto size = static_cast<TokenId>(vocab.tokens.size());
  vocab.eos_id = size - 4;
  vocab.eot_id = size - 2;
  vocab.chat_template = Turns("<|im_start|>R\n", "<|im_end|>\n");
  auto tokenizer = Tokenizer::FromGguf(vocab);
  ASSERT_TRUE(tokenizer.ok());
  std::vector<std::pair<TokenId, std::string>> found;
  for (const EndToken& end : EndTokens(**tokenizer, "")) found.emplace_back(end.id, end.source);
  EXPECT_THAT(found,
              ElementsAre(std::pair(size - 4, "tokenizer.ggml.eos_token_id"),
                          std::pair(size - 2, "tokenizer.ggml.eot_token_id"),
                          std::pair(size - 2, "the chat template closes an answer with it")));
  const auto with_other = EndTokens(**tokenizer, Turns("<|im_start|>R\n", "<|eot|>\n"));
  EXPECT_EQ(with_other.back().id, size - 1);
}

}  // namespace
}  // namespace sixfold
