#include "base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace sixfold {

struct Sha256::Impl {
  EVP_MD_CTX* context = nullptr;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  // A user's openssl.cnf may name providers that do not load; nothing here depends on it.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  impl_->context = EVP_MD_CTX_new();
  SF_CHECK(impl_->context != nullptr);
  SF_CHECK_EQ(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(impl_->context); }

Sha256& Sha256::Add(std::span<const std::byte> bytes) {
  SF_CHECK_EQ(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()), 1);
  return *this;
}

Sha256& Sha256::Add(uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(number & 0xff);
    number >>= 8;
  }
  return Add(bytes);
}

Digest256 Sha256::Finish() {
  Digest256 digest;
  unsigned size = 0;
  SF_CHECK_EQ(
      EVP_DigestFinal_ex(impl_->context, reinterpret_cast<unsigned char*>(digest.data()), &size),
      1);
  SF_CHECK_EQ(size, digest.size());
  SF_CHECK_EQ(EVP_DigestInit_ex(impl_->context, nullptr, nullptr), 1);
  return digest;
}

std::string HexText(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace sixfold
