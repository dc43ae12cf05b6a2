// Counts the bytes that a program loads and stores, by unit and by memory, and those of them that a cache
// does not keep.
//
// The program is compiled with -fsanitize=thread, so it announces every access of memory; here is what it
// calls instead of the sanitizer. Registers, spilled ones among them, announce nothing, nor do atomic
// operations, with which units wait for each other.
//
// Every unit has a cache of its own. It replaces the line that was used least recently. A line moves when it
// is loaded and not there, and when it goes after it was stored to, at the end of the call at the latest. A
// line that is stored before it is loaded is not fetched: programs store whole lines. Sets depend on the
// place in an array, not on addresses, so that a count can be repeated.
#include <stdlib.h>

typedef unsigned char u8;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

struct CkUnit {  // the beginning of the one in cpu_src/cocktail_units.h
  i64 index, count;
  u8* own;
};

extern "C" int ck_program(const void* const* operands, void* const* results, u8* workspace, CkUnit* unit);

namespace {

const i64 kMostUnits = 256, kMostMemories = 1024;

struct Memory {
  u64 begin, end;
};

// By memory: loaded and stored bytes. 0: any other; 1: the unit's own; then those of `memories`.
struct alignas(128) Counts {
  u64 bytes[kMostMemories + 2][2];
};

Memory memories[kMostMemories];
i64 memory_count, own_bytes;
Counts counts[kMostUnits];

const u64 kLine = 64, kSets = 1024;

struct Line {
  u64 tag;  // 0: nothing is there
  u64 used;
  i64 memory;
  bool stored;
};

struct Cache {
  Line* lines;                     // kSets sets of `ways`
  u64 now;                         // the number of accesses so far
  Line* last[kMostMemories + 2];   // the line that was used last, by memory
  Counts moved;                    // bytes of lines
};

u64 ways;  // of a cache; 0: none is simulated
Cache* caches[kMostUnits];

thread_local Counts* mine;
thread_local Cache* cache;
thread_local Memory own;

// One access of at most one line.
void Touch(i64 memory, u64 place, int stored) {
  const u64 number = place / kLine, tag = (number << 11 | u64(memory)) + 1;
  Line* line = cache->last[memory];
  if (line == nullptr || line->tag != tag) {
    Line* const set = cache->lines + (number ^ u64(memory) * 389) % kSets * ways;
    line = set;
    for (u64 i = 0; i < ways; ++i) {
      if (set[i].tag == tag) {
        line = set + i;
        break;
      }
      if (set[i].used < line->used) line = set + i;
    }
    if (line->tag != tag) {
      if (line->stored) cache->moved.bytes[line->memory][1] += kLine;
      if (!stored) cache->moved.bytes[memory][0] += kLine;
      *line = {tag, 0, memory, false};
    }
    cache->last[memory] = line;
  }
  line->used = ++cache->now;
  line->stored |= stored != 0;
}

void Count(const void* at, u64 size, int stored) {
  if (mine == nullptr || size == 0) return;
  const u64 address = reinterpret_cast<u64>(at);
  i64 found = address - own.begin < own.end - own.begin;
  u64 begin = own.begin;
  for (i64 i = 0; found == 0 && i < memory_count; ++i) {
    if (address - memories[i].begin < memories[i].end - memories[i].begin) {
      found = i + 2;
      begin = memories[i].begin;
    }
  }
  mine->bytes[found][stored] += size;
  if (cache == nullptr || found == 0) return;
  const u64 first = address - begin, last = first + size - 1;
  for (u64 place = first; place / kLine <= last / kLine; place += kLine) Touch(found, place, stored);
}

// Starts with an empty cache.
Cache* NewCache() {
  Cache* made = static_cast<Cache*>(calloc(1, sizeof(Cache)));
  made->lines = static_cast<Line*>(calloc(kSets * ways, sizeof(Line)));
  return made;
}

void FreeCache(Cache* old) {
  if (old != nullptr) free(old->lines);
  free(old);
}

// What was stored leaves the cache; what only one unit has seen goes with the call.
void Flush() {
  for (u64 i = 0; i < kSets * ways; ++i) {
    const Line& line = cache->lines[i];
    if (line.stored && line.memory != 1) cache->moved.bytes[line.memory][1] += kLine;
  }
}

}  // namespace

#define CK_ACCESS(NAME, SIZE, STORED) \
  extern "C" void __tsan_##NAME(void* at) { Count(at, SIZE, STORED); }
#define CK_ACCESSES(SIZE)                           \
  CK_ACCESS(read##SIZE, SIZE, 0)                    \
  CK_ACCESS(write##SIZE, SIZE, 1)                   \
  CK_ACCESS(unaligned_read##SIZE, SIZE, 0)          \
  CK_ACCESS(unaligned_write##SIZE, SIZE, 1)         \
  CK_ACCESS(volatile_read##SIZE, SIZE, 0)           \
  CK_ACCESS(volatile_write##SIZE, SIZE, 1)          \
  CK_ACCESS(unaligned_volatile_read##SIZE, SIZE, 0) \
  CK_ACCESS(unaligned_volatile_write##SIZE, SIZE, 1)
CK_ACCESSES(1)
CK_ACCESSES(2)
CK_ACCESSES(4)
CK_ACCESSES(8)
CK_ACCESSES(16)
extern "C" void __tsan_read_range(void* at, u64 size) { Count(at, size, 0); }
extern "C" void __tsan_write_range(void* at, u64 size) { Count(at, size, 1); }
// Copies of whole arrays, see counted.h.
extern "C" void* ck_traffic_copy(void* to, const void* from, u64 size) {
  Count(from, size, 0);
  Count(to, size, 1);
  return __builtin_memcpy(to, from, size);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}

#define CK_ATOMICS(BITS, T)                                                    \
  extern "C" T __tsan_atomic##BITS##_load(const volatile T* at, int) {         \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                              \
  }                                                                            \
  extern "C" void __tsan_atomic##BITS##_store(volatile T* at, T value, int) {  \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                             \
  }                                                                            \
  extern "C" T __tsan_atomic##BITS##_fetch_add(volatile T* at, T value, int) { \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                    \
  }                                                                            \
  extern "C" int __tsan_atomic##BITS##_compare_exchange_strong(                \
      volatile T* at, T* expected, T value, int, int) {                        \
    return __atomic_compare_exchange_n(at, expected, value, false,             \
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
  }
CK_ATOMICS(32, u32)
CK_ATOMICS(64, u64)
extern "C" void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// What a call will touch: `begins` and `bytes` of `count` arrays; `cached`: bytes of the cache of a unit.
// Forgets what was counted before.
extern "C" void ck_traffic_begin(const u64* begins, const u64* bytes, i64 count, i64 own, i64 cached) {
  memory_count = count;
  own_bytes = own;
  ways = u64(cached) / (kLine * kSets);
  for (i64 i = 0; i < kMostUnits; ++i) {
    FreeCache(caches[i]);
    caches[i] = nullptr;
  }
  for (i64 i = 0; i < count; ++i) memories[i] = {begins[i], begins[i] + bytes[i]};
  for (i64 i = 0; i < kMostUnits; ++i) counts[i] = {};
}

// In place of ck_program.
extern "C" int ck_traffic_program(const void* const* operands, void* const* results, u8* workspace,
                                  CkUnit* unit) {
  own = {reinterpret_cast<u64>(unit->own), reinterpret_cast<u64>(unit->own) + u64(own_bytes)};
  mine = &counts[unit->index];
  cache = caches[unit->index] = ways != 0 ? NewCache() : nullptr;
  const int code = ck_program(operands, results, workspace, unit);
  if (cache != nullptr) Flush();
  mine = nullptr;
  cache = nullptr;
  return code;
}

// Of a unit: loaded and stored bytes of each of memory_count + 2 memories.
extern "C" const u64* ck_traffic_counts(i64 unit) { return counts[unit].bytes[0]; }

// The same of what the cache of the unit does not keep; nullptr if none was simulated.
extern "C" const u64* ck_traffic_far(i64 unit) {
  return caches[unit] != nullptr ? caches[unit]->moved.bytes[0] : nullptr;
}
