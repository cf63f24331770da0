// Objects of JSON that keep the order of their keys, as Python's dicts do: chat templates print it.
// nlohmann::ordered_map finds a key by reading all that came before, so an object of a million keys
// would take hours to read; here large objects have an index.
#pragma once

#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace sixfold::gateway {

// What nlohmann::basic_json asks of an object's type.
template <class Key, class T, class IgnoredLess = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>>
class IndexedMap : public std::list<std::pair<const Key, T>, Allocator> {
  using Base = std::list<std::pair<const Key, T>, Allocator>;

 public:
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<Key>;
  using typename Base::const_iterator;
  using typename Base::iterator;
  using typename Base::size_type;

  using Base::Base;
  IndexedMap() = default;
  IndexedMap(IndexedMap&&) = default;
  IndexedMap& operator=(IndexedMap&&) = default;
  IndexedMap(const IndexedMap& other) : Base(other) {}  // the index holds places of the other list
  IndexedMap& operator=(const IndexedMap&) = delete;

  iterator find(const Key& key) {
    if (!index_.empty()) {
      const auto found = index_.find(key);
      return found == index_.end() ? this->end() : found->second;
    }
    auto at = this->begin();
    while (at != this->end() && at->first != key) ++at;
    return at;
  }
  const_iterator find(const Key& key) const { return const_cast<IndexedMap*>(this)->find(key); }
  size_type count(const Key& key) const { return find(key) == this->end() ? 0 : 1; }

  // An equal key that is there keeps its value, as std::map has it.
  std::pair<iterator, bool> emplace(const Key& key, T&& value) {
    const auto found = find(key);
    if (found != this->end()) return {found, false};
    this->emplace_back(key, std::move(value));
    const auto added = std::prev(this->end());
    if (!index_.empty()) {
      index_.emplace(added->first, added);
    } else if (this->size() >= kIndexedSize) {
      for (auto at = this->begin(); at != this->end(); ++at) index_.emplace(at->first, at);
    }
    return {added, true};
  }
  T& operator[](const Key& key) { return emplace(key, T{}).first->second; }

  iterator erase(iterator at) {
    index_.erase(at->first);
    return Base::erase(at);
  }
  iterator erase(iterator first, iterator last) {
    while (first != last) first = erase(first);
    return last;
  }
  size_type erase(const Key& key) {
    const auto found = find(key);
    if (found == this->end()) return 0;
    erase(found);
    return 1;
  }
  void clear() {
    index_.clear();
    Base::clear();
  }

  // Objects are equal whatever the order of their keys.
  friend bool operator==(const IndexedMap& a, const IndexedMap& b) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a) {
      const auto found = b.find(key);
      if (found == b.end() || !(found->second == value)) return false;
    }
    return true;
  }

 private:
  static constexpr size_type kIndexedSize = 32;
  std::map<std::reference_wrapper<const Key>, iterator, std::less<Key>>
      index_;  // empty, or all keys
};

}  // namespace sixfold::gateway
