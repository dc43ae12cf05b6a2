// One call of a program by several units.
//
// The caller calls its workers and begins with those that come at once. While it waits at a barrier, it looks
// whether the units that are late have lost their core to another process. Such a unit leaves at the next
// barrier, and the others share its work. So another process delays a call once per core that it takes, and the
// calls after it not at all (runtime_pool.h).
#ifndef COCKTAIL_RUNTIME_TEAM_H
#define COCKTAIL_RUNTIME_TEAM_H

#include "runtime_pool.h"

namespace {

typedef int ProgramFunction(const void* const* operands, void* const* results, u8* workspace, CkUnit* unit);

// Polls of a barrier, about 40 us, before the unit yields its core. With much less, two units that share
// their cores with busy processes give away whole time slices in turn.
const u64 kSpins = 2000;
const u64 kSpinsOversubscribed = 30;  // if the awaited unit probably needs this core
const u64 kYields = 20000;            // then short sleeps: some milliseconds have passed
const u64 kSleepNanoseconds = 50000;
const u64 kYieldsPerLook = 16;  // at the clocks
// A worker that is awake, and one that must be woken, comes within so many nanoseconds, or has no core.
const u64 kAwakeNanoseconds = 20000, kWakeNanoseconds = 100000;
const u64 kLostNanoseconds = 100000;  // a late unit that does not run for so long has lost its core

struct Member {
  Worker* worker;
  i64 index;  // of its unit; -1: it does not take part
  bool lost;  // it has lost its core, and leaves
};

// The data that all units of a call share.
struct Team : Call {
  ProgramFunction* function;
  const void* const* operands;
  void* const* results;
  u8* workspace;
  u64 float_mode;
  u8* own;
  i64 stride;
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
  u64 since, ran; // wall time, and its CPU time, when the watch began
  bool away;      // it has no core
  u64 looked;     // when the caller saw that last
  u64 lost;       // nanoseconds in all
};

struct Unit : CkUnit {
  Team* team_of_call;
  i64 number;
};

bool IsLate(const Team* team, const Member& member, u64 epoch) {
  if (member.index < 0 || IsDone(member.worker)) return false;
  return epoch == 0 || __atomic_load_n(&team->barrier->units[member.index].value, __ATOMIC_ACQUIRE) < epoch;
}

// The caller's look at the clocks while it waits for the others at barrier `epoch`, or (0) for their end.
void Watch(Team* team, u64 epoch) {
  u64 now = Nanoseconds();
  if (team->watched && (team->epoch != epoch || !IsLate(team, team->members[team->watched], epoch))) {
    team->watched = 0;
  }
  if (team->watched == 0) {
    for (i64 i = 1; i < team->num_members && team->watched == 0; ++i) {
      if (IsLate(team, team->members[i], epoch)) team->watched = i;
    }
    if (team->watched == 0) return;
    team->epoch = epoch;
    team->since = team->looked = now;
    team->ran = Nanoseconds(team->members[team->watched].worker->clock);
    team->away = false;
    return;
  }
  if (now - team->since < kLostNanoseconds) return;
  Member& member = team->members[team->watched];
  if (!team->away && Nanoseconds(member.worker->clock) - team->ran > (now - team->since) / 2) {
    team->watched = 0;  // it has more work than the others
    return;
  }
  team->away = member.lost = true;
  team->lost += now - team->looked;
  team->looked = now;
  if (epoch > 0 && !team->exact) __atomic_store_n(&team->barrier->change_at, epoch + 1, __ATOMIC_RELAXED);
}

void Yield(CkUnit* unit, u64 times) {
  auto* self = static_cast<Unit*>(unit);
  Team* team = self->team_of_call;
  bool away = false;
  if (self->number == 0 && team->fits && times % kYieldsPerLook == 0) {
    Watch(team, unit->team->units[0].value);
    away = team->watched && team->away;
  }
  if (away || times >= kYields) {
    Sleep(kSleepNanoseconds);  // the core is free for the unit that has none
  } else {
    sched_yield();
  }
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

// Gives the members that stay the indices from 1, in order. Returns the number of units.
i64 Number(Team* team) {
  i64 count = 1;
  for (i64 i = 1; i < team->num_members; ++i) {
    Member& member = team->members[i];
    if (member.index >= 0) member.index = member.lost ? -1 : count++;
  }
  return count;
}

// Waits until all units have left the barrier, so that whatever a unit has done is done before another unit
// takes over from it. The counters of the barrier begin anew.
bool Change(CkUnit* unit) {
  auto* self = static_cast<Unit*>(unit);
  Team* team = self->team_of_call;
  CkTeam* barrier = unit->team;
  if (self->number == 0) {
    for (u64 times = 0; __atomic_load_n(&team->changing, __ATOMIC_ACQUIRE) != unit->count - 1; ++times) {
      Poll(times, barrier->spins);
    }
    for (i64 i = 0; i < unit->count; ++i) barrier->units[i].value = 0;
    for (i64 i = 0; i < team->num_groups; ++i) barrier->groups[i].value = 0;
    barrier->root.value = barrier->released.value = barrier->change_at = 0;
    team->changing = team->watched = 0;
    unit->count = Number(team);
    __atomic_store_n(&team->count, unit->count, __ATOMIC_RELAXED);
    __atomic_store_n(&team->generation, team->generation + 1, __ATOMIC_RELEASE);
    return false;
  }
  u64 before = __atomic_load_n(&team->generation, __ATOMIC_RELAXED);
  __atomic_add_fetch(&team->changing, 1, __ATOMIC_ACQ_REL);
  for (u64 times = 0; __atomic_load_n(&team->generation, __ATOMIC_ACQUIRE) == before; ++times) {
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
  unit.team_of_call = team;
  unit.number = number;
  return team->function(team->operands, team->results, team->workspace, &unit);
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

// Waits for the workers, but not for one without a core.
void Gather(Team* team) {
  u64 start = team->exact ? 0 : Nanoseconds();
  for (i64 i = 1; i < team->num_members; ++i) {
    Member& member = team->members[i];
    u64 limit = member.worker->slept ? kWakeNanoseconds : kAwakeNanoseconds;
    for (u64 times = 0; !IsPresent(member.worker); ++times) {
      if (team->exact) {
        Poll(times, team->barrier->spins);
      } else if (times % 64 != 63 || Nanoseconds() - start < limit) {
        ck_pause();
      } else if (Withdraw(member.worker)) {
        member.lost = true;
        team->lost += limit;
        break;
      }
    }
  }
}

// Runs the call on this thread and some workers. `fits`: there is a core for everyone. Returns the code of the
// first failed unit, or 0.
__attribute__((noinline)) int RunTeam(Team* team, i64 num_workers, Worker** workers, bool fits) {
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
  *team->barrier = CkTeam{counters, counters + count, Yield, Change, spins, 0, {0}, {0}};
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
      if (fits && times > spins && times % kYieldsPerLook == 0) Watch(team, 0);
      Poll(team->watched && team->away ? ~u64(0) : times, spins);
    }
    if (code == 0) code = member.worker->code;
  }
  i64 kept = count;
  for (i64 i = 1; i < count; ++i) kept -= members[i].lost;
  if (kept < count) PauseFor(team->lost, kept);
  return code;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_TEAM_H
