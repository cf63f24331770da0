#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace sixfold {
namespace {

using ::testing::HasSubstr;

constexpr char kMessages[] = R"([{"role":"user","content":"Hi <b>é</b>"}])";

std::string Render(std::string_view source, const ChatTemplateOptions& options = {}, std::string_view messages = kMessages) {
  auto text = RenderChatTemplate(source, messages, options);
  return text.ok() ? *text : text.status().ToString();
}

// tests/text compares with jinja2 itself; these hold where it isn't installed.
TEST(ChatTemplate, FollowsTransformers) {
  EXPECT_EQ(Render("{{ messages|tojson }}"), R"([{"role": "user", "content": "Hi <b>é</b>"}])");
  EXPECT_EQ(Render("{% if true %}\n  x\n  {% endif %}\ny"), "  x\ny");
  EXPECT_EQ(Render("{{ true ~ none ~ 1.0 ~ [1, 'a'] }}"), "TrueNone1.0[1, 'a']");
  EXPECT_EQ(Render("{% generation %}a{% endgeneration %}"), "a");
  EXPECT_EQ(Render("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}"), "");
  EXPECT_EQ(Render("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"), "TrueTrueFalse");
  EXPECT_EQ(Render("{{ {'items': 1}.items()|list }}"), "[('items', 1)]");
}

TEST(ChatTemplate, TakesVariables) {
  ChatTemplateOptions options;
  options.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  options.tools_json = R"([{"z":1,"a":2}])";
  options.kwargs_json = R"({"enable_thinking":false,"eos_token":"!","messages":5})";
  options.add_generation_prompt = true;
  EXPECT_EQ(Render("{{ bos_token }}{{ eos_token }}{{ tools|tojson }}{{ enable_thinking }}{{ add_generation_prompt }}"
                   "{{ messages|length }}",
                   options),
            R"(<s>![{"z": 1, "a": 2}]FalseTrue1)");
}

TEST(ChatTemplate, ToolsMayComeWithTheVariables) {
  EXPECT_EQ(Render("{{ tools }}", {.kwargs_json = R"({"tools":[1]})"}), "[1]");
  EXPECT_EQ(Render("{{ tools }}", {.tools_json = "[2]", .kwargs_json = R"({"tools":[1]})"}), "[2]");
}

TEST(ChatTemplate, KeepsTheOrderOfKeys) {
  const char messages[] = R"([{"role":"tool","zip":1,"city":{"z":1,"a":2},"content":"x"}])";
  EXPECT_EQ(
      Render("{{ messages[0]|tojson }}{{ args|tojson }}{{ tools }}",
             {.tools_json = R"([{"z":1,"a":2}])", .kwargs_json = R"({"args":{"zip":1,"city":2}})"},
             messages),
      R"({"role": "tool", "zip": 1, "city": {"z": 1, "a": 2}, "content": "x"}{"zip": 1, "city": 2}[{'z': 1, 'a': 2}])");
}

TEST(ChatTemplate, DeveloperIsSystemUnlessTheTemplateNamesIt) {
  const char messages[] = R"([{"role":"developer","content":"x"},{"role":"king","content":"y"}])";
  EXPECT_EQ(Render("{% for m in messages %}{{ m.role }} {% endfor %}", {}, messages),
            "system king ");
  EXPECT_EQ(Render("{{ messages[0].role }}{% if messages[0]['role'] == 'developer' %}!{% endif %}",
                   {}, messages),
            "developer!");
}

TEST(ChatTemplate, NullContentIsNullUnlessThatFails) {
  const char messages[] = R"([{"role":"assistant","content":null,"tool_calls":[]}])";
  EXPECT_EQ(Render("{{ messages[0].content is none }}", {}, messages), "True");
  EXPECT_EQ(Render("{{ '<' + messages[0].content + '>' }}", {}, messages), "<>");
}

TEST(ChatTemplate, SlicesAsPythonDoes) {
  EXPECT_EQ(Render("{{ [][::-1] }}{{ [0,1,2,3,4,5][4:0:-1] }}{{ messages[1:][::-1] }}{{ (1, 2, "
                   "3)[:-3:-1] }}{{ 'äbc'[-1::-2] }}"),
            "[][4, 3, 2, 1][](3, 2)cä");
  EXPECT_EQ(Render("{{ [3]|sum(start=4) }} {{ [[1], [2]]|sum(start=[]) }} {{ 'x' is sequence }} {{ "
                   "(1,) }} {{ 5|safe }}"),
            "7 [1, 2] True (1,) 5");
}

TEST(ChatTemplate, FormatsTheTimeGiven) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  EXPECT_EQ(Render("{{ strftime_now('%d %b %Y') }}", {.now_s = 1700000000}), "14 Nov 2023");
}

TEST(ChatTemplate, CarriesTheTemplatesOwnWords) {
  auto text = RenderChatTemplate("{{ raise_exception('roles must alternate') }}", kMessages, {});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(text.status().message(), "roles must alternate");
}

TEST(ChatTemplate, SaysWhatIsWrong) {
  EXPECT_THAT(Render("a\nb\n{% if %}"), HasSubstr("line 3"));
  EXPECT_THAT(Render("{{ missing.x }}"), HasSubstr("undefined"));
  EXPECT_THAT(Render("{{ 1 }}", {}, "[1"), HasSubstr("messages"));
  EXPECT_THAT(Render("{{ 1 }}", {.kwargs_json = "5"}), HasSubstr("chat_template_kwargs"));
  EXPECT_THAT(Render("\xFF"), HasSubstr("UTF-8"));
  EXPECT_THAT(Render("{{ 1 }}", {}, std::string(5000, '[')), HasSubstr("recursion"));
  EXPECT_TRUE(CheckChatTemplate("{{ 1 }}").ok());
  EXPECT_THAT(CheckChatTemplate("{{ 1 }").message(), HasSubstr("chat template"));
}

TEST(HostileChatTemplate, EndsWithinItsBounds) {
  const std::string loop = "{% set ns = namespace(x='ab') %}{% for i in range(99999) %}";
  for (const std::string& source :
       {loop + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        loop + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        loop + "{% for j in range(99999) %}{% endfor %}{% endfor %}",
        std::string("{{ 'x' * 10**12 }}"), loop + "{{ 'x' * 10**6 }}{% endfor %}",
        "{{ 1" + std::string(5000, '|') + " }}",
        "{{ 1" +
            [] {
              std::string s;
              for (int i = 0; i < 4000; ++i) s += "+1";
              return s;
            }() +
            "|nope }}",
        std::string(2 << 20, 'x'), std::string("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        std::string("{% for i in range(10**12) %}{% endfor %}"),
        loop + "{% set ns.x = ns.x[:] + ns.x[::-1] %}{% endfor %}",
        std::string("{{ ([[1] * 1000] * 1000 + [[1] * 1000] * 1000)|sum(start=[])|length }}"),
        std::string("{{ [1]|batch(10**12, 'x')|list }}"),
        std::string("{{ '{:>9999999999}'.format(1) }}")}) {
    const auto start = std::chrono::steady_clock::now();
    auto text = RenderChatTemplate(source, kMessages, {.bytes_max = 32 << 20});
    EXPECT_FALSE(text.ok()) << source.substr(0, 100);
    EXPECT_NE(text.status().code(), StatusCode::kInternal) << text.status().ToString();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace sixfold
