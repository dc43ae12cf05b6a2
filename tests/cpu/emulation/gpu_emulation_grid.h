// The grid on strands: its threads, what they wait for, who runs next, and the report when nobody can.
#ifndef GPU_EMULATION_GRID_H
#define GPU_EMULATION_GRID_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gpu_emulation.h"
#include "gpu_emulation_order.h"
#include "gpu_emulation_strands.h"

namespace ck_emulation {

Here* here;

namespace {

enum { TABLES = WARP + 1, GUARD = 1 << 16, CANARY = 256 };
enum class State { READY, POLLING, WAITING, DONE };

// What lanes brought to a meeting; `readers` have not met again since.
struct Table {
  int readers;
  alignas(16) unsigned char bytes[WARP][LANE_BYTES];
};

// Meetings of the same lanes follow each other; the sanitizer ties each to one of `orders`.
struct Meeting {
  Lanes mask;
  unsigned arrivals;
  char orders[2];
};

struct Warp {
  Table* tables;  // TABLES of them: enough that one is free
  std::deque<Meeting> meetings;
};

struct Block;
struct Fiber {
  Here here;
  Strand strand;
  State state;
  const char* what;  // waits for
  Place place;
  Lanes mask;
  unsigned long long polled_at;
  alignas(16) unsigned char mine[LANE_BYTES];  // what it brings to a meeting
  Table* table;                                // what it last got from one
  int cluster_epoch;
  int group;  // of copies
  std::vector<Copy> copies;
  Block* block;
};

struct Cluster {
  int arrived, epoch, members;
  char orders[2];
};

struct Block {
  std::vector<Warp> warps;
  unsigned char* arena;
  int index, waiting, votes, result[2], epoch, ended;
  Place place;  // where its threads meet
  char orders[2];
  Cluster* cluster;
};

struct Grid {
  const Order* order;
  std::vector<Block> blocks;
  std::vector<Fiber> fibers;
  std::vector<Cluster> clusters;
  std::vector<Fiber*> ring;  // the ready ones, from `head` on
  size_t head, ready;
  std::vector<void*> launch;  // the kernel's parameter
  Strand scheduler;
  sigjmp_buf escape;
  char* stacks;
  size_t stacks_bytes;
  std::string report;
  unsigned long long random, progress, switches;
  size_t stale;  // pollers in vain since the last progress
  size_t alive;
  int favoured;  // a block that runs ahead of the others
  bool failed;
  char start, end;
};

Grid* grid;
Fiber* now;

// Not memcpy: the sanitizers would count it as the program's.
void copy_bytes(unsigned char* to, const unsigned char* from, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = from[i];
}

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* text, ...) {
  char line[1024];
  va_list rest;
  va_start(rest, text);
  vsnprintf(line, sizeof line, text, rest);
  va_end(rest);
  return line;
}

std::string spell(Place place) {
  const char* name = place.file ? strrchr(place.file, '/') : nullptr;
  return format("%s:%d", name ? name + 1 : place.file ? place.file : "?", place.line);
}

bool same(Place a, Place b) { return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)); }

std::string who(const Fiber& fiber) {
  return format("thread %u of block %u", fiber.here.thread.x, fiber.here.block.x);
}

unsigned draw(size_t bound) {  // splitmix64
  unsigned long long x = grid->random += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return unsigned(((x ^ (x >> 31)) >> 32) * bound >> 32);
}

long long own_bytes(const Order& order) {
  const Program& program = ck_emulation_program;
  return program.own_size < 0 ? program.own_bytes : order.sizes[program.own_size];
}

long long arena_bytes(const Order& order) {
  const Program& program = ck_emulation_program;
  return program.scratch_bytes + (order.resident ? own_bytes(order) + program.resident_bytes : 0);
}

void moved() {
  ++grid->progress;
  grid->stale = 0;
}

void put(Fiber* fiber) {
  grid->ring[(grid->head + grid->ready++) % grid->ring.size()] = fiber;
}

void wake(Fiber& fiber) {
  fiber.state = State::READY;
  put(&fiber);
  moved();
}

// From the running fiber back to the scheduler.
void leave(State state) {
  now->state = state;
  go(&now->strand, &grid->scheduler);
}

void wait(const char* what, Place place) {
  now->what = what;
  now->place = place;
  leave(State::WAITING);
}

void stop(const std::string& report) {
  if (!grid->failed) grid->report = report;
  grid->failed = true;
}

void run_thread() {
  begin_strand(&grid->scheduler);
  __tsan_acquire(&grid->start);
  ck_emulation_program.kernels[grid->order->resident ? 0 : 1](grid->launch.data());
  Fiber& me = *now;
  if (!me.copies.empty()) {
    stop(who(me) + " ended before it waited for its asynchronous copies");
  }
  __tsan_release(&grid->end);
  ++me.block->ended;
  --grid->alive;
  moved();
  leave(State::DONE);
  abort();
}

void enter(Fiber* fiber) {
  now = fiber;
  here = &fiber->here;
  go(&grid->scheduler, &fiber->strand);
}

// Seed 0: in turn. Else by chance, with one block favoured for a while: blocks drift apart as on a device.
Fiber* choose() {
  std::vector<Fiber*>& ring = grid->ring;
  size_t head = grid->head, size = ring.size();
  if (grid->order->seed != 0) {
    if (++grid->switches % 64 == 0) grid->favoured = int(draw(grid->blocks.size() * 2));
    size_t pick = draw(grid->ready);
    for (int i = 0; i < 4 && ring[(head + pick) % size]->block->index != grid->favoured; ++i) {
      pick = draw(grid->ready);
    }
    std::swap(ring[(head + pick) % size], ring[head]);
  }
  grid->head = (head + 1) % size;
  --grid->ready;
  return ring[head];
}

// Who waits where: "block 0: threads 0-3, 7 wait at __syncthreads (program.cu:12)".
std::string standstill() {
  std::string text;
  int shown = 0;
  for (const Block& block : grid->blocks) {
    std::vector<std::pair<std::string, std::string>> groups;
    int threads = ck_emulation_program.threads;
    const Fiber* fibers = &grid->fibers[size_t(block.index) * threads];
    auto spot = [&](int i) {
      const Fiber& f = fibers[i];
      if (f.state == State::DONE) return std::string("ended");
      std::string lanes = f.mask == ALL_LANES ? "" : format(", lanes 0x%08llx", f.mask);
      return std::string(f.state == State::WAITING ? "wait at " : "poll at ") + f.what + lanes + " (" +
             spell(f.place) + ")";
    };
    for (int i = 0; i < threads;) {
      std::string at = spot(i);
      int last = i;
      while (last + 1 < threads && spot(last + 1) == at) ++last;
      std::string range = last == i ? format("%d", i) : format("%d-%d", i, last);
      size_t g = 0;
      while (g < groups.size() && groups[g].first != at) ++g;
      if (g == groups.size()) groups.push_back({at, range}); else groups[g].second += ", " + range;
      i = last + 1;
    }
    if (++shown > 8) return text + "\n  and so on";
    for (auto& group : groups) {
      text += format("\n  block %d: threads ", block.index) + group.second + " " + group.first;
    }
  }
  return text;
}

#if !defined(CK_TSAN) && !defined(CK_ASAN)
void caught(int number, siginfo_t* info, void*) {
  char* at = static_cast<char*>(info->si_addr);
  const char* stack = static_cast<const char*>(now->strand.stack);
  long long bytes = grid->order->stack_bytes;
  if (number == SIGFPE) {
    stop("integer division by zero in " + who(*now));
  } else if (at < stack && at >= stack - GUARD) {
    std::string small = format("the stack of %lld bytes is too small for ", bytes);
    stop(small + who(*now) + ": launch with more stack_bytes");
  } else {
    stop(format("address %p, which no array has, was used by ", static_cast<void*>(at)) + who(*now));
  }
  siglongjmp(grid->escape, 1);
}

struct Signals {
  struct sigaction before[3];
  stack_t stack_before;
  std::vector<char> stack;
  static constexpr int NUMBERS[3] = {SIGSEGV, SIGBUS, SIGFPE};
  Signals() : stack(1 << 16) {
    stack_t mine = {};
    mine.ss_sp = stack.data();
    mine.ss_size = stack.size();
    sigaltstack(&mine, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; ++i) sigaction(NUMBERS[i], &action, &before[i]);
  }
  ~Signals() {
    for (int i = 0; i < 3; ++i) sigaction(NUMBERS[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
};
#else
struct Signals {};  // the sanitizers tell more
#endif

void schedule() {
  Signals signals;
  if (sigsetjmp(grid->escape, 1) == 0) {
    while (grid->alive && !grid->failed) {
      if (grid->stale >= grid->ready) {
        stop("deadlock: no thread can move" + standstill());
        break;
      }
      Fiber* fiber = choose();
      enter(fiber);
      if (fiber->state == State::READY || fiber->state == State::POLLING) put(fiber);
    }
  }
  (void)signals;
}

}  // namespace
}  // namespace ck_emulation

#endif  // GPU_EMULATION_GRID_H
