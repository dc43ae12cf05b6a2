// Scratch memory of calls. Calls lease arenas from a pool, because fresh pages cost more than most programs.
// Large ones that nobody has used for some seconds are given back.
#ifndef COCKTAIL_RUNTIME_MEMORY_H
#define COCKTAIL_RUNTIME_MEMORY_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime_threads.h"

namespace {

struct Arena {
  unsigned char* memory;
  size_t size;
  u64 idle_since;  // nanoseconds
};

const size_t kSmallArena = size_t(1) << 20;  // these stay
const u64 kIdleArenaNanoseconds = 3000000000, kTidyNanoseconds = 1000000000;
const int kMaxIdleArenas = 16;
const size_t kPage = 4096;
const size_t kHugePage = size_t(2) << 20;
Arena idle_arenas[kMaxIdleArenas];
int num_idle_arenas = 0;
bool tidying = false;  // a thread gives arenas back
pthread_mutex_t arena_mutex = PTHREAD_MUTEX_INITIALIZER;

// Frees the large arenas that have been idle for long. True if others may follow.
bool Tidy(u64 now) {
  bool more = false;
  int count = 0;
  unsigned char* expired[kMaxIdleArenas];  // freed without the lock: it takes long
  pthread_mutex_lock(&arena_mutex);
  for (int i = 0; i < num_idle_arenas; ++i) {
    if (idle_arenas[i].size <= kSmallArena) continue;
    if (now < idle_arenas[i].idle_since + kIdleArenaNanoseconds) {
      more = true;
    } else {
      expired[count++] = idle_arenas[i].memory;
      idle_arenas[i--] = idle_arenas[--num_idle_arenas];
    }
  }
  tidying = more;
  pthread_mutex_unlock(&arena_mutex);
  for (int i = 0; i < count; ++i) free(expired[i]);
  return more;
}

void* TidyMain(void*) {
  do {
    Sleep(kTidyNanoseconds);
  } while (Tidy(Nanoseconds()));
  return nullptr;
}

// The smallest idle arena that fits, else a new one. {nullptr, 0} when memory is exhausted.
Arena LeaseArena(size_t size) {
  pthread_mutex_lock(&arena_mutex);
  int best = -1;
  for (int i = 0; i < num_idle_arenas; ++i) {
    if (idle_arenas[i].size >= size && (best < 0 || idle_arenas[i].size < idle_arenas[best].size)) best = i;
  }
  Arena arena = {nullptr, 0, 0};
  if (best >= 0) {
    arena = idle_arenas[best];
    idle_arenas[best] = idle_arenas[--num_idle_arenas];
  }
  pthread_mutex_unlock(&arena_mutex);
  if (arena.memory != nullptr) return arena;
  size_t alignment = size >= kHugePage ? kHugePage : size > kPage - 64 ? kPage : 64;
  if (size > SIZE_MAX - alignment) return arena;
  size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, rounded) != 0) return arena;
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);
#endif
  return Arena{static_cast<unsigned char*>(memory), rounded, 0};
}

// Frees the smallest arena if too many are idle.
void ReturnArena(Arena arena) {
  if (arena.memory == nullptr) return;
  bool large = arena.size > kSmallArena, start = false;
  if (large) arena.idle_since = Nanoseconds();
  pthread_mutex_lock(&arena_mutex);
  if (num_idle_arenas < kMaxIdleArenas) {
    idle_arenas[num_idle_arenas++] = arena;
    arena.memory = nullptr;
  } else {
    int smallest = 0;
    for (int i = 1; i < num_idle_arenas; ++i) {
      if (idle_arenas[i].size < idle_arenas[smallest].size) smallest = i;
    }
    if (idle_arenas[smallest].size < arena.size) {
      Arena evicted = idle_arenas[smallest];
      idle_arenas[smallest] = arena;
      arena = evicted;
    }
  }
  if (large && !tidying) start = tidying = true;
  pthread_mutex_unlock(&arena_mutex);
  free(arena.memory);
  pthread_t thread;
  if (start && !StartThread(&thread, TidyMain, nullptr, nullptr)) {
    pthread_mutex_lock(&arena_mutex);
    tidying = false;
    pthread_mutex_unlock(&arena_mutex);
  }
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_MEMORY_H
