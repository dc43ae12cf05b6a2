// The number of cores that this process may use, from its affinity and the quota of its control groups
// (versions 1 and 2).
#ifndef COCKTAIL_RUNTIME_CORES_H
#define COCKTAIL_RUNTIME_CORES_H

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

const char* const kControlGroups = "/sys/fs/cgroup";
const char* const kMembership = "/proc/self/cgroup";

// The cores that the kernel allows for this process. Larger than cpu_set_t, because some machines are.
struct CoreSet {
  unsigned long words[16384 / (8 * sizeof(unsigned long))];
  size_t bytes;  // 0: unknown
};

// Those of the main thread: another thread may be bound to one core, but workers should not be.
void ReadAffinity(CoreSet* set) {
  memset(set, 0, sizeof(*set));
  long bytes = syscall(SYS_sched_getaffinity, getpid(), sizeof(set->words), set->words);
  set->bytes = bytes > 0 ? size_t(bytes) : 0;
}

int64_t CountCores(const CoreSet& set) {
  int64_t count = 0;
  for (size_t i = 0; i < set.bytes / sizeof(unsigned long); ++i) count += __builtin_popcountl(set.words[i]);
  return count > 0 ? count : 1;
}

// The start of a file as text; "" if there is none.
void ReadText(const char* path, char* text, size_t size) {
  size_t end = 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  while (fd >= 0 && end + 1 < size) {
    ssize_t got = read(fd, text + end, size - 1 - end);
    if (got <= 0) break;
    end += size_t(got);
  }
  if (fd >= 0) close(fd);
  text[end] = 0;
}

// Cores of one group, rounded up; 0: no limit.
int64_t QuotaOfGroup(const char* folder, bool unified) {
  char path[1200], text[128];
  long long quota = 0, period = 0;
  if (unified) {
    snprintf(path, sizeof(path), "%s/cpu.max", folder);
    ReadText(path, text, sizeof(text));
    if (sscanf(text, "%lld %lld", &quota, &period) != 2) return 0;  // "max 100000"
  } else {
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", folder);
    ReadText(path, text, sizeof(text));
    quota = atoll(text);  // -1: no limit
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
    ReadText(path, text, sizeof(text));
    period = atoll(text);
  }
  return quota > 0 && period > 0 ? (quota + period - 1) / period : 0;
}

// The smallest quota from the group `group` below `mount` upwards; 0: none. Inside a container, the name
// may be that of the group outside; then the mount itself is the group.
int64_t QuotaOnPath(const char* mount, const char* group, bool unified) {
  char folder[1024];
  snprintf(folder, sizeof(folder), "%s%s", mount, group);
  int64_t smallest = 0;
  for (size_t end = strlen(folder); end >= strlen(mount); --end) {
    if (folder[end] != 0 && folder[end] != '/') continue;
    folder[end] = 0;
    int64_t quota = QuotaOfGroup(folder, unified);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  }
  return smallest;
}

bool HasController(const char* list, const char* name) {
  size_t length = strlen(name);
  for (const char* at = list; at != nullptr; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
  }
  return false;
}

// `root`: the mount point of control groups; `membership`: this process's lines "number:controllers:group".
int64_t ControlGroupQuota(const char* root, const char* membership) {
  char text[8192], mount[600];
  ReadText(membership, text, sizeof(text));
  int64_t smallest = 0;
  for (char *line = text, *next; *line; line = next) {
    size_t length = strcspn(line, "\n");
    next = line + length + (line[length] != 0);
    line[length] = 0;
    char* controllers = strchr(line, ':');
    char* group = controllers ? strchr(controllers + 1, ':') : nullptr;
    if (group == nullptr || group[1] != '/') continue;
    *controllers++ = *group++ = 0;
    bool unified = *controllers == 0;
    if (!unified && !HasController(controllers, "cpu")) continue;
    snprintf(mount, sizeof(mount), "%s%s%s", root, unified ? "" : "/", controllers);
    int64_t quota = QuotaOnPath(mount, group, unified);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
  }
  return smallest;
}

int64_t UsableCores() {
  CoreSet set;
  ReadAffinity(&set);
  int64_t cores = CountCores(set), quota = ControlGroupQuota(kControlGroups, kMembership);
  return quota > 0 && quota < cores ? quota : cores;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_CORES_H
