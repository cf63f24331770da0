#include "apps/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "apps/commands.h"
#include "base/nearest.h"
#include "apps/option_sources.h"

namespace sixfold::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Given {
  CommandId command = CommandId::kServe;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  std::string file;  // the text of c.toml
  ArgumentShape shape = {.min = 0, .max = 0, .text = "[MODEL]"};
};

Result<Resolved> Resolve(const Given& given) {
  const auto read = [&](const std::filesystem::path& path) -> Result<std::string> {
    if (path != "c.toml") return InvalidFile(path.string() + ": no such file");
    return given.file;
  };
  return ResolveOptions(given.command, given.shape, {given.arguments, given.environment, read});
}

std::string Refusal(const Given& given) {
  const auto resolved = Resolve(given);
  return resolved.ok() ? "accepted" : resolved.status().message();
}

// Two commands may give one name to different things, one command may not.
TEST(OptionTable, EverySpellingIsUniqueInACommandAndEveryDefaultIsAValue) {
  std::map<std::string, CommandSet> seen;
  const auto add = [&](std::string_view spelling, CommandSet commands) {
    CommandSet& taken = seen[std::string(spelling)];
    EXPECT_EQ(taken & commands, 0u) << spelling;
    taken |= commands;
  };
  for (const OptionSpec& spec : OptionTable()) {
    add(spec.name, spec.commands);
    for (const auto alias : spec.aliases) add(alias, spec.commands);
    EXPECT_NE(spec.commands, 0u) << spec.name;
    EXPECT_EQ(spec.type == OptionType::kFlag, spec.metavar.empty()) << spec.name;
    EXPECT_EQ(spec.fallback == "auto", !spec.auto_means.empty()) << spec.name;
    const bool may_be_unset = spec.type == OptionType::kText || spec.type == OptionType::kTexts ||
                              spec.type == OptionType::kIntegers;
    if (spec.fallback.empty()) {
      EXPECT_TRUE(may_be_unset) << spec.name;
    } else {
      EXPECT_TRUE(CanonicalValue(spec, spec.fallback).ok()) << spec.name;
    }
  }
}

TEST(Options, ANameMeansWhatTheCommandMeansByIt) {
  for (const bool by_flag : {true, false}) {
    Given bytes{.command = CommandId::kByteFormulas}, trace{.command = CommandId::kTrace};
    if (by_flag) {
      bytes.arguments = {"--experts", "1k"};
      trace.arguments = {"--experts", "routes.json"};
    } else {
      bytes.environment = {"SIXFOLD_EXPERTS=1k"};
      trace.environment = {"SIXFOLD_EXPERTS=routes.json"};
    }
    EXPECT_EQ(Resolve(bytes)->options.Integer("experts"), 1000);
    EXPECT_EQ(Resolve(trace)->options.Text("experts"), "routes.json");
  }
  EXPECT_EQ(Resolve({.command = CommandId::kTrace, .arguments = {"--config", "c.toml"}, .file = "[trace]\nexperts = 'a'"})->options.Text("experts"), "a");
  EXPECT_THAT(Refusal({.command = CommandId::kByteFormulas, .arguments = {"--experts", "a"}}), HasSubstr("an integer"));
}

TEST(Options, DefaultsHoldWhenNothingIsGiven) {
  const auto resolved = Resolve({});
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->options.Integer("port"), 8000);
  EXPECT_EQ(resolved->options.Text("host"), "127.0.0.1");
  EXPECT_EQ(resolved->options.MaybeInteger("max-model-len"), std::nullopt);
  EXPECT_THAT(resolved->options.Texts("served-model-name"), IsEmpty());
  EXPECT_FALSE(resolved->options.IsGiven("port"));
}

TEST(Options, FlagWinsOverEnvironmentOverFileOverDefault) {
  Given given{.arguments = {"--config", "c.toml"},
              .file = "port = 1\nmax-num-seqs = 2\n[run]\nport = 9\n"};
  EXPECT_EQ(Resolve(given)->options.Integer("port"), 1);
  given.environment = {"SIXFOLD_PORT=3", "HOME=/x"};
  EXPECT_EQ(Resolve(given)->options.Integer("port"), 3);
  EXPECT_EQ(Resolve(given)->options.Integer("max-num-seqs"), 2);
  given.arguments.insert(given.arguments.end(), {"--port", "4"});
  EXPECT_EQ(Resolve(given)->options.Integer("port"), 4);
  EXPECT_EQ(Resolve(given)->options.Get("port").origin.name, "--port");
  EXPECT_EQ(Resolve(given)->options.Get("max-num-seqs").origin.name, "c.toml:2");
}

TEST(Options, TheFilesTableOfTheCommandWinsOverItsTop) {
  const Given given{.environment = {"SIXFOLD_CONFIG=c.toml"},
                    .file = "port = 1\n[serve]\nport = 7\n"};
  EXPECT_EQ(Resolve(given)->options.Integer("port"), 7);
}

TEST(Options, AliasesAndUnderscoresWorkInAllThreeSources) {
  EXPECT_EQ(Resolve({.arguments = {"--context-length", "77"}})->options.Integer("max-model-len"),
            77);
  EXPECT_EQ(Resolve({.arguments = {"--max_model_len=78"}})->options.Integer("max-model-len"), 78);
  EXPECT_EQ(Resolve({.arguments = {"-c", "79"}})->options.Integer("max-model-len"), 79);
  EXPECT_EQ(Resolve({.arguments = {"-np", "5", "-t2"}})->options.Integer("max-num-seqs"), 5);
  EXPECT_EQ(
      Resolve({.environment = {"SIXFOLD_MAX_RUNNING_REQUESTS=6"}})->options.Integer("max-num-seqs"),
      6);
  EXPECT_EQ(Resolve({.arguments = {"--config=c.toml"}, .file = "chunked_prefill_size = 8"})
                ->options.Integer("max-num-batched-tokens"),
            8);
}

TEST(Options, ValuesAreReadInTheirUnits) {
  const auto memory = [](const char* text) {
    return Resolve({.arguments = {"--kv-cache-memory", text}})->options.Integer("kv-cache-memory");
  };
  EXPECT_EQ(memory("512M"), int64_t{512} << 20);
  EXPECT_EQ(memory("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(memory("1.5G"), int64_t{3} << 29);
  EXPECT_EQ(memory("2GB"), 2000000000);
  EXPECT_EQ(memory("3g"), 3000000000);
  EXPECT_EQ(memory("12345"), 12345);
  EXPECT_EQ(Resolve({.arguments = {"--max-model-len", "4k"}})->options.Integer("max-model-len"),
            4000);
  EXPECT_EQ(Resolve({.arguments = {"--max-model-len", "4K"}})->options.Integer("max-model-len"),
            4096);
  EXPECT_EQ(Resolve({.arguments = {"--dtype", "bfloat16"}})->options.Text("dtype"), "bf16");
}

TEST(Options, ListsAndFlagsAndOddValues) {
  const Given given{
      .command = CommandId::kGenerate,
      .arguments = {"m", "--prompt", "--not-a-flag", "--stop", "a", "--stop=", "--prompt-tokens",
                    "1, 2,3", "--ignore-eos", "--top-k", "-1", "--no-json"}};
  const auto resolved = Resolve(given);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  const Options& options = resolved->options;
  EXPECT_EQ(options.Text("model"), "m");
  EXPECT_EQ(options.Text("prompt"), "--not-a-flag");
  EXPECT_THAT(options.Texts("stop"), ElementsAre("a", ""));
  EXPECT_THAT(options.Integers("prompt-tokens"), ElementsAre(1, 2, 3));
  EXPECT_TRUE(options.Flag("ignore-eos"));
  EXPECT_FALSE(options.Flag("json"));
  EXPECT_EQ(options.MaybeInteger("top-k"), -1);
}

TEST(Options, TheLastFlagWins) {
  EXPECT_EQ(Resolve({.arguments = {"--port", "1", "--port", "2"}})->options.Integer("port"), 2);
}

TEST(Options, ModelIsAnArgumentAFlagOrAVariable) {
  const ArgumentShape dump{.min = 1, .max = 1, .text = "MODEL TENSOR"};
  const auto both = Resolve({.command = CommandId::kDump, .arguments = {"m", "t"}, .shape = dump});
  EXPECT_EQ(both->options.Text("model"), "m");
  EXPECT_THAT(both->options.arguments(), ElementsAre("t"));
  const auto flag =
      Resolve({.command = CommandId::kDump, .arguments = {"--model", "m", "t"}, .shape = dump});
  EXPECT_THAT(flag->options.arguments(), ElementsAre("t"));
  const auto variable = Resolve({.command = CommandId::kDump,
                                 .arguments = {"t"},
                                 .environment = {"SIXFOLD_MODEL=m"},
                                 .shape = dump});
  EXPECT_EQ(variable->options.Text("model"), "m");
  EXPECT_THAT(Refusal({.command = CommandId::kDump, .arguments = {}, .shape = dump}),
              HasSubstr("argument is missing"));
  EXPECT_THAT(Refusal({.arguments = {"m", "more"}}), HasSubstr("unexpected argument 'more'"));
}

TEST(Options, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_THAT(Refusal({.arguments = {"--prot", "1"}}),
              HasSubstr("unknown option --prot (did you mean '--port'?)"));
  EXPECT_THAT(Refusal({.arguments = {"-z"}}), HasSubstr("unknown option -z"));
  EXPECT_THAT(
      Refusal({.environment = {"SIXFOLD_PROT=1"}}),
      HasSubstr("unknown environment variable SIXFOLD_PROT (did you mean 'SIXFOLD_PORT'?)"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_port=1"}}),
              HasSubstr("unknown environment variable"));
  EXPECT_EQ(Refusal({.environment = {"SIXFOLD_TEST_BINARY=1"}}), "accepted");
  EXPECT_EQ(Refusal({.environment = {"SIXFOLD_PORT="}}), "accepted");
  EXPECT_THAT(
      Refusal({.environment = {"SIXFOLD_PORT=1", "SIXFOLD_CTX_SIZE=1", "SIXFOLD_MAX_MODEL_LEN=2"}}),
      HasSubstr("SIXFOLD_MAX_MODEL_LEN and SIXFOLD_CTX_SIZE are the same setting"));
  EXPECT_THAT(Refusal({.arguments = {"--config", "c.toml"}, .file = "\nmax-num-seq = 1"}),
              HasSubstr("c.toml:2: unknown key 'max-num-seq' (did you mean 'max-num-seqs'?)"));
  EXPECT_THAT(Refusal({.arguments = {"--config", "c.toml"}, .file = "[generat]\nseed = 1"}),
              HasSubstr("unknown table [generat] (did you mean 'generate'?)"));
  EXPECT_THAT(Refusal({.arguments = {"--config", "c.toml"}, .file = "[run]\nsed = 1"}),
              HasSubstr("unknown key 'sed'"));
  EXPECT_THAT(Refusal({.arguments = {"--jsonl"}}), HasSubstr("--jsonl is no option of serve"));
}

// What kubectl and `docker run --link` put into a container beside a service of our name.
TEST(Options, VariablesOfAServiceNamedSixfoldArePassedOver) {
  const std::vector<std::string> kubernetes = {
      "SIXFOLD_SERVICE_HOST=10.0.0.1", "SIXFOLD_SERVICE_PORT=80", "SIXFOLD_SERVICE_PORT_HTTP=80",
      "SIXFOLD_PORT=tcp://10.0.0.1:80", "SIXFOLD_PORT_80_TCP=tcp://10.0.0.1:80",
      "SIXFOLD_PORT_80_TCP_PROTO=tcp", "SIXFOLD_PORT_80_TCP_PORT=80",
      "SIXFOLD_PORT_80_TCP_ADDR=10.0.0.1", "SIXFOLD_MODEL_SERVICE_HOST=10.0.0.2",
      "SIXFOLD_MODEL_PORT=udp://10.0.0.2:53", "SIXFOLD_MODEL_PORT_53_UDP_ADDR=10.0.0.2"};
  const std::vector<std::string> docker = {
      "SIXFOLD_PORT=tcp://172.17.0.2:8000", "SIXFOLD_NAME=/web/sixfold",
      "SIXFOLD_PORT_8000_TCP_PORT_START=8000", "SIXFOLD_ENV_LANG=C.UTF-8"};
  for (const auto& environment : {kubernetes, docker}) {
    const auto resolved = Resolve({.environment = environment});
    ASSERT_TRUE(resolved.ok()) << resolved.status().message();
    EXPECT_EQ(resolved->options.Integer("port"), 8000);
    EXPECT_FALSE(resolved->options.IsGiven("port"));
    std::vector<std::string> names;
    for (const std::string& entry : environment) names.push_back(entry.substr(0, entry.find('=')));
    EXPECT_THAT(resolved->passed_over, testing::UnorderedElementsAreArray(names));
    for (const std::string& name : names)
      EXPECT_THAT(PassedOverText(resolved->passed_over), HasSubstr(name));
  }
  EXPECT_EQ(PassedOverText({}), "");
}

TEST(Options, WhatOnlyLooksLikeAServicesVariableIsStillChecked) {
  EXPECT_EQ(Resolve({.environment = {"SIXFOLD_PORT=9", "SIXFOLD_SERVICE_HOST=h"}})->options.Integer("port"), 9);
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_PORT=http://x"}}), HasSubstr("SIXFOLD_PORT: expected"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_HOSTT=1"}}), HasSubstr("unknown environment variable"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_MODEL_PORT=8000"}}), HasSubstr("SIXFOLD_MODEL_PORT"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_PORT_TCP=80"}}), HasSubstr("SIXFOLD_PORT_TCP"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_MODEL_NAME=/models/a"}}), HasSubstr("SIXFOLD_MODEL_NAME"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_SERVICE_HOST=h", "SIXFOLD_PROT=1"}}), HasSubstr("SIXFOLD_PROT"));
  EXPECT_THAT(Refusal({.environment = {"SIXFOLD_HOST=tcp://1.2.3.4:5", "SIXFOLD_ENV_A=1"}}), HasSubstr("SIXFOLD_ENV_A"));
}

TEST(Options, BadValuesNameTheSettingTheRangeAndWhatWasGiven) {
  EXPECT_EQ(Refusal({.arguments = {"--port", "70000"}}),
            "--port: expected an integer from 0 to 65535, got '70000'");
  EXPECT_EQ(Refusal({.arguments = {"--attention-chunk=100"}}),
            "--attention-chunk: expected a power of two from 16 to 512, or auto, got '100'");
  EXPECT_EQ(Refusal({.environment = {"SIXFOLD_ISA=avx"}}),
            "SIXFOLD_ISA: expected one of auto, scalar, avx2, avx512, amx, got 'avx' (did you mean "
            "'avx2'?)");
  EXPECT_THAT(Refusal({.arguments = {"--config", "c.toml"}, .file = "port = \"x\""}),
              HasSubstr("c.toml:1: port: expected an integer from 0 to 65535, got 'x'"));
  EXPECT_THAT(Refusal({.arguments = {"--max-model-len", "0"}}),
              HasSubstr("from 1 to 1000000000, or auto, got '0'"));
  EXPECT_THAT(Refusal({.arguments = {"--port"}}), HasSubstr("--port needs a value"));
  EXPECT_THAT(Refusal({.arguments = {"--config", "c.toml"}, .file = "port = [1]"}),
              HasSubstr("takes one plain value"));
  EXPECT_THAT(Refusal({.arguments = {"--config", "c.toml"}, .file = "port = "}),
              HasSubstr("c.toml:1"));
  for (const char* text : {"nan", "inf", "1e999", "", "1x", "2.1", "-0.1"}) {
    EXPECT_THAT(Refusal({.command = CommandId::kRun, .arguments = {"--temperature", text}}),
                HasSubstr("--temperature: expected a number from 0 to 2"))
        << text;
  }
  for (const char* text : {"9223372036854775808", "1e3", "99999999999999999999G", "4Q", "", "G"}) {
    EXPECT_THAT(Refusal({.arguments = {"--kv-cache-memory", text}}), HasSubstr("expected a size"))
        << text;
  }
  EXPECT_THAT(Refusal({.command = CommandId::kLogits, .arguments = {"m", "--tokens", "1,,2"}}),
              HasSubstr("--tokens"));
}

TEST(PrintConfig, ReadsBackAsAConfigFileThatMeansTheSame) {
  Given given{.arguments = {"--port", "4", "--served-model-name", "a\"b", "--served-model-name",
                            "c", "--kv-cache-memory", "1G", "--api-key", "hush"},
              .environment = {"SIXFOLD_HOST=0.0.0.0"}};
  const std::string printed = PrintConfig(Resolve(given)->options, "serve");
  EXPECT_THAT(printed, HasSubstr("# flag --port"));
  EXPECT_THAT(printed, HasSubstr("# environment SIXFOLD_HOST"));
  EXPECT_THAT(printed, ::testing::Not(HasSubstr("hush")));
  const Given again{.arguments = {"--config", "c.toml"}, .file = printed};
  const auto resolved = Resolve(again);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message() << "\n" << printed;
  EXPECT_EQ(resolved->options.Integer("port"), 4);
  EXPECT_EQ(resolved->options.Text("host"), "0.0.0.0");
  EXPECT_THAT(resolved->options.Texts("served-model-name"), ElementsAre("a\"b", "c"));
  EXPECT_EQ(resolved->options.Integer("kv-cache-memory"), int64_t{1} << 30);
}

TEST(PrintConfig, IsValidForEveryCommand) {
  for (const CommandInfo& command : CommandTable()) {
    const ArgumentShape shape = command.shape;
    const auto resolved =
        Resolve({.command = command.id, .arguments = {"--print-config"}, .shape = shape});
    ASSERT_TRUE(resolved.ok()) << command.name << resolved.status().message();
    EXPECT_EQ(resolved->action, Action::kPrintConfig);
    const std::string printed = PrintConfig(resolved->options, command.name);
    EXPECT_TRUE(ParseConfigFile(printed, "c.toml", command.name).ok()) << printed;
  }
}

TEST(Help, HasEveryOptionOfTheCommandInLinesOfOneHundredColumns) {
  for (const CommandInfo& command : CommandTable()) {
    const std::string help = OptionHelp(command.id);
    size_t begin = 0;
    while (begin < help.size()) {
      const size_t end = help.find('\n', begin);
      EXPECT_LE(end - begin, 101u) << help.substr(begin, end - begin);
      begin = end + 1;
    }
  }
  EXPECT_THAT(OptionHelp(CommandId::kServe), HasSubstr("--max-num-seqs N"));
  EXPECT_THAT(OptionHelp(CommandId::kTokenize), ::testing::Not(HasSubstr("--max-num-seqs")));
}

TEST(Nearest, CountsSwapsAsOneChange) {
  EXPECT_EQ(EditDistance("port", "prot"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  const std::vector<std::string> names = {"blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                          "output.weight"};
  EXPECT_THAT(NearestNames("blk.0.attn_p.weight", names, 1), ElementsAre("blk.0.attn_q.weight"));
  EXPECT_THAT(NearestNames("zzz", names, 3), IsEmpty());
}

}  // namespace
}  // namespace sixfold::apps
