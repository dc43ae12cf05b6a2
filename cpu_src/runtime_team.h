// One call of a program by several units.
//
// The caller calls its workers and begins with those that come at once. While it waits at a barrier, it
// looks whether the units that are late have lost their core to another process. Such a unit leaves at the
// next barrier, and the others share its work. So another process delays a call once per core that it
// takes, and the calls after it not at all (runtime_pool.h).
#ifndef COCKTAIL_RUNTIME_TEAM_H
#define COCKTAIL_RUNTIME_TEAM_H

#include "runtime_entry.h"
#include "runtime_pool.h"

namespace {

// Polls of a barrier, about 40 us, before the unit yields its core. With much less, two units that share
// their cores with busy processes give away whole time slices in turn.
const u64 kSpins = 2000;
const u64 kSpinsOversubscribed = 30;  // if the awaited unit probably needs this core
const u64 kYields = 20000;            // then short sleeps: some milliseconds have passed
const u64 kSleepNanoseconds = 50000;
const u64 kYieldsPerLook = 16;  // at the clocks
// A worker comes within so many nanoseconds, or it has no core: one that is awake, and one that must be
// woken. It may take longer if the call is long, or while other threads of this process hold the cores:
// they sleep soon.
const u64 kAwakeNanoseconds = 20000, kWakeNanoseconds = 100000, kOwnNanoseconds = 1000000;
const u64 kWaitsPerCall = 4;
const u64 kPausePerWait = 8;  // after a worker has not come
const u64 kLookNanoseconds = 100000;  // a late unit that does not run for so long has lost its core

// Nanoseconds that have passed, and for which this process and one of its threads have run.
struct Clocks {
  u64 wall, process, thread;
};

Clocks ReadClocks(clockid_t thread) {
  return Clocks{Nanoseconds(), Nanoseconds(CLOCK_PROCESS_CPUTIME_ID), Nanoseconds(thread)};
}

// Whether this process ran on so many cores all the time.
bool HeldCores(const Clocks& before, const Clocks& now, i64 cores) {
  return 2 * (now.process - before.process) > u64(2 * cores - 1) * (now.wall - before.wall);
}

struct Member {
  Worker* worker;
  i64 index;  // of its unit; -1: it does not take part
  bool lost;  // it has lost its core, and leaves
};

// The data that all units of a call share.
struct Team : Call {
  Entry* entry;
  const void* const* operands;
  void* const* results;
  u8* workspace;
  u64 float_mode;
  u8* own;
  i64 stride;
  const i64* sizes;
  CkTeam* barrier;
  i64 num_groups;
  bool exact;       // nobody leaves
  Member* members;  // by number of the worker; 0 is the caller
  i64 num_members;
  i64 count;       // units; 0: not known yet
  i64 changing;    // units that wait for their new index
  u64 generation;  // changes so far
  // The caller's watch over one late unit.
  i64 watched;    // its number; 0: none
  u64 epoch;      // the barrier at which it is late
  Clocks since;   // of the thread, when the watch began
  bool away;      // it has no core
  u64 lost;       // nanoseconds for which units were away
  Run* run;
};

struct Unit : CkUnit {
  Team* team_of_call;
  i64 number;
};

bool IsLate(const Team* team, const Member& member, u64 epoch) {
  if (member.index < 0 || IsDone(member.worker)) return false;
  return epoch == 0 || __atomic_load_n(&team->barrier->units[member.index].value, __ATOMIC_ACQUIRE) < epoch;
}

// Adds the time for which the watched unit had no core. It leaves if that was long.
void Account(Team* team) {
  u64 passed = Nanoseconds() - team->since.wall;
  if (passed < kLookNanoseconds) return;
  Member& member = team->members[team->watched];
  Clocks now = ReadClocks(member.worker->clock);
  if (now.process == team->since.process) return;  // clocks that are too coarse to tell
  bool ran = now.thread - team->since.thread > passed / 2;
  // If it runs, it has more work than the others. If this process holds the cores, it will run soon.
  team->away = !ran && !HeldCores(team->since, now, team->count);
  team->since = now;
  if (!team->away || team->exact) return;
  team->lost += passed;
  if (team->lost < Least(&team->entry->together)) return;  // to wait costs less than to go on without it
  member.lost = true;
  u64* change_at = &team->barrier->change_at;  // stays if it is the barrier at which this call waits already
  u64 none = CK_NEVER;  // else, or the call is stopped
  if (team->epoch > 0) {
    __atomic_compare_exchange_n(change_at, &none, team->epoch + 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
}

// The caller's look at the clocks while it waits for the others at barrier `epoch`, or (0) for their end.
void Watch(Team* team, u64 epoch) {
  if (team->watched && team->epoch == epoch) Account(team);
  if (team->watched && team->epoch == epoch && IsLate(team, team->members[team->watched], epoch)) return;
  team->watched = 0;
  team->away = false;
  for (i64 i = 1; i < team->num_members && team->watched == 0; ++i) {
    if (IsLate(team, team->members[i], epoch)) team->watched = i;
  }
  if (team->watched == 0) return;
  team->epoch = epoch;
  team->since = ReadClocks(team->members[team->watched].worker->clock);
}

// What the caller does while it waits for others, after it has polled for a while.
void WaitAsCaller(Team* team, u64 epoch, u64 times) {
  if (times % kYieldsPerLook == 0) Watch(team, epoch);
  if (team->away || times >= kYields) {
    Sleep(kSleepNanoseconds);  // the core is free for the unit that has none
    return;
  }
  u64 before = Nanoseconds();
  sched_yield();
  if (Nanoseconds() - before > kLookNanoseconds) Watch(team, epoch);  // another thread had the core
}

void Poll(u64 times, u64 spins) {
  if (times < spins) {
    ck_pause();
  } else if (times - spins < kYields) {
    sched_yield();
  } else {
    Sleep(kSleepNanoseconds);
  }
}

void Yield(CkUnit* unit, u64 times) {
  auto* self = static_cast<Unit*>(unit);
  Team* team = self->team_of_call;
  if (self->number == 0 && team->fits) {
    WaitAsCaller(team, unit->team->units[0].value, times);
  } else {
    Poll(times, 0);
  }
}

// Gives the members that stay the indices from 1, in order. Returns the number of units.
i64 Number(Team* team) {
  i64 count = 1;
  for (i64 i = 1; i < team->num_members; ++i) {
    Member& member = team->members[i];
    if (member.index >= 0) member.index = member.lost ? -1 : count++;
  }
  return count;
}

// A unit leaves a call that is stopped: no other unit waits for it any longer, and each leaves at its next
// barrier. Returns true.
bool Passes(CkUnit* unit) {
  CkTeam* barrier = unit->team;
  __atomic_store_n(&barrier->change_at, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&barrier->units[unit->index].value, CK_NEVER, __ATOMIC_RELEASE);
  __atomic_store_n(&barrier->released.value, CK_NEVER, __ATOMIC_RELEASE);
  return true;
}

// A unit saw the alarm.
bool Stops(CkUnit* unit, i64 loop, i64 trip) {
  return AsksToStop(static_cast<Unit*>(unit)->team_of_call->run, loop, trip) && Passes(unit);
}

// Waits until all units have left the barrier, so that whatever a unit has done is done before another unit
// takes over from it. The counters of the barrier begin anew.
bool Change(CkUnit* unit) {
  auto* self = static_cast<Unit*>(unit);
  Team* team = self->team_of_call;
  CkTeam* barrier = unit->team;
  if (IsStopped(team->run)) return Passes(unit);
  if (self->number == 0) {
    for (u64 times = 0; __atomic_load_n(&team->changing, __ATOMIC_ACQUIRE) != unit->count - 1; ++times) {
      if (IsStopped(team->run)) return Passes(unit);
      Poll(times, barrier->spins);
    }
    for (i64 i = 0; i < unit->count; ++i) barrier->units[i].value = 0;
    for (i64 i = 0; i < team->num_groups; ++i) barrier->groups[i].value = 0;
    barrier->root.value = barrier->released.value = 0;
    barrier->change_at = CK_NEVER;
    team->changing = team->watched = 0;
    unit->count = Number(team);
    __atomic_store_n(&team->count, unit->count, __ATOMIC_RELAXED);
    __atomic_store_n(&team->generation, team->generation + 1, __ATOMIC_RELEASE);
    return false;
  }
  u64 before = __atomic_load_n(&team->generation, __ATOMIC_RELAXED);
  __atomic_add_fetch(&team->changing, 1, __ATOMIC_ACQ_REL);
  for (u64 times = 0; __atomic_load_n(&team->generation, __ATOMIC_ACQUIRE) == before; ++times) {
    // A unit that has its new index may have stopped the call; this one has one too then.
    bool stopped = IsStopped(team->run);
    if (stopped && __atomic_load_n(&team->generation, __ATOMIC_ACQUIRE) == before) return Passes(unit);
    Poll(times, barrier->spins);
  }
  unit->index = team->members[self->number].index;
  unit->count = __atomic_load_n(&team->count, __ATOMIC_RELAXED);
  return unit->index < 0;
}

int RunUnit(Team* team, i64 number) {
  Unit unit;
  unit.index = team->members[number].index;
  unit.count = team->count;
  unit.own = team->own + number * team->stride;
  unit.team = team->barrier;
  unit.sizes = team->sizes;
  unit.alarm = AlarmOf(team->run);
  unit.stops = Stops;
  unit.team_of_call = team;
  unit.number = number;
  return team->entry->function(team->operands, team->results, team->workspace, &unit);
}

// What a worker does, once the caller knows how many have come.
int Work(Call* call, i64 number) {
  auto* team = static_cast<Team*>(call);
  for (u64 times = 0; __atomic_load_n(&team->count, __ATOMIC_ACQUIRE) == 0; ++times) {
    Poll(times, team->barrier->spins);
  }
  SetFloatMode(team->float_mode);
  return RunUnit(team, number);
}

// False if the worker does not come: it has no core. `since`: when the caller first looked at the clocks,
// which it does only if it has to wait.
bool Comes(const Team* team, Worker* worker, Clocks* since) {
  const u64 kPollsPerLook = 64;
  u64 limit = worker->slept ? kWakeNanoseconds : kAwakeNanoseconds;
  if (limit * kWaitsPerCall < Least(&team->entry->together)) {
    limit = Least(&team->entry->together) / kWaitsPerCall;
  }
  for (u64 times = 1; !IsPresent(worker); ++times) {
    if (team->exact) {
      Poll(times, team->barrier->spins);
    } else if (times % kPollsPerLook != 0) {
      ck_pause();
    } else if (since->wall == 0) {
      *since = ReadClocks(worker->clock);
    } else {
      Clocks now = ReadClocks(worker->clock);
      u64 waited = now.wall - since->wall;
      bool soon = waited < kOwnNanoseconds && HeldCores(*since, now, team->num_members);
      if (waited > limit && !soon && Withdraw(worker)) return false;
    }
  }
  return true;
}

// Waits for the workers, but not for those without a core.
void Gather(Team* team) {
  Clocks since = {0, 0, 0};
  i64 gone = 0;
  const Worker* late = nullptr;
  for (i64 i = 1; i < team->num_members; ++i) {
    Member& member = team->members[i];
    member.index = Comes(team, member.worker, &since) ? 0 : -1;
    if (member.index < 0) late = member.worker;
    gone += member.index < 0;
  }
  if (gone > 0) PauseFor(kPausePerWait * (Nanoseconds() - since.wall), team->num_members - gone, late);
}

// Runs the call on this thread and some workers. `fits`: there is a core for everyone; `start`: when the call
// began. Returns the code of the first failed unit, or 0.
__attribute__((noinline)) int RunTeam(Team* team, i64 num_workers, Worker** workers, bool fits, u64 start) {
  i64 count = num_workers + 1, groups = (count + CK_FLAT_UNITS - 1) / CK_FLAT_UNITS;
  Member members[CK_MOST_UNITS];
  for (i64 i = 0; i < count; ++i) members[i] = Member{i > 0 ? workers[i - 1] : nullptr, 0, false};
  team->members = members;
  team->num_members = count;
  team->float_mode = FloatMode();
  i64 bytes = i64(sizeof(CkTeam)) + (count + groups) * i64(sizeof(CkCounter));
  auto* memory = static_cast<u8*>(__builtin_alloca(size_t(bytes) + alignof(CkTeam)));
  memory += -reinterpret_cast<u64>(memory) % alignof(CkTeam);
  team->barrier = reinterpret_cast<CkTeam*>(memory);
  auto* counters = reinterpret_cast<CkCounter*>(team->barrier + 1);
  u64 spins = fits ? kSpins : kSpinsOversubscribed;
  *team->barrier = CkTeam{counters, counters + count, Yield, Change, spins, CK_NEVER, {0}, {0}};
  for (i64 i = 0; i < count + groups; ++i) counters[i].value = 0;
  team->num_groups = groups;
  team->work = Work;
  team->fits = fits;
  team->exact = team->exact || !fits;
  int core = fits && count > 1 ? sched_getcpu() : -1;
  for (i64 i = 1; i < count; ++i) Begin(members[i].worker, team, i, core);
  Gather(team);
  __atomic_store_n(&team->count, Number(team), __ATOMIC_RELEASE);
  int code = RunUnit(team, 0);
  team->watched = 0;
  for (i64 i = 1; i < count; ++i) {
    const Member& member = members[i];
    if (!IsPresent(member.worker)) continue;
    for (u64 times = 0; !IsDone(member.worker); ++times) {
      if (times < spins || !fits) {
        Poll(times, spins);
      } else {
        WaitAsCaller(team, 0, times - spins);
      }
    }
    if (code == 0) code = member.worker->code;
  }
  u64 passed = Nanoseconds() - start;
  i64 lost = 0, kept = 1;
  for (i64 i = 1; i < count; ++i) {
    lost += members[i].lost;
    kept += members[i].index >= 0 && !members[i].lost;
  }
  if (lost > 0) PauseFor(passed, kept, nullptr);
  if (kept == count && !IsStopped(team->run)) KeepLeast(&team->entry->together, passed);
  return code;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_TEAM_H
