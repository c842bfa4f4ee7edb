/* A stand-in for NVIDIA's management library: boards that do what a block of shared memory says.

   Compiled by the tests with gcc; -DOLD_DRIVER leaves out what drivers before 530 lack.  The block is a file that
   WATTPRINT_NVML_STUB names, 64 numbers of 64 bits for each board (see stub.py); without it there is no driver.  A process
   with WATTPRINT_NVML_STUB_NO_RIGHT may not set clocks. */

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define SLOTS 64
#define MOST_BOARDS 8

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED = 9, GPU_LOST = 15 };

enum slot {
  BOARDS, FAIL_INIT, POWER_MW, AVERAGE_MW, MODULE_MW, ENERGY_MJ, SM_MHZ, MEM_MHZ, TEMP_C, REASONS, LIMIT_MW, LOCK_LOW, LOCK_HIGH, MAY_LOCK,
  FAIL_ALL, FAIL_FIELDS, MIG, VIRTUAL, VALUE_TYPE, FAIL_ENERGY, PROCESSES, LOCK_CALLS, RESET_CALLS, READS, READ_DELAY_US, PRODUCT, FAIL_USAGE, TELL_TIME,
  SERIES, CLOCK_READS, GAP_NS, READ_NS, FAIL_LOCK
};

static volatile int64_t *block;
static int users; /* as in the real library, the last of several shutdowns counts */
static const char *products[] = {"NVIDIA H200", "NVIDIA A100-PCIE-40GB", "Tesla V100-PCIE-32GB", "NVIDIA GH200 480GB", "NVIDIA Unheard Of"};

static int index_of(void *handle) { return (int)((intptr_t)handle - 1); }
static volatile int64_t *board(void *handle) { return block + SLOTS * index_of(handle); }
static int refusal(void *handle) {
  if (!block) return UNINITIALIZED;
  if (index_of(handle) < 0 || index_of(handle) >= block[BOARDS]) return INVALID_ARGUMENT;
  return (int)board(handle)[FAIL_ALL];
}
#define ENTER(handle) do { int code = refusal(handle); if (code) return code; } while (0)

API int nvmlShutdown(void) {
  if (users > 0) users--;
  if (users > 0 || !block) return SUCCESS;
  munmap((void *)block, SLOTS * 8 * MOST_BOARDS);
  block = NULL;
  return SUCCESS;
}
API int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  const char *path = getenv("WATTPRINT_NVML_STUB");
  if (!path || !*path) return DRIVER_NOT_LOADED;
  if (!block) {
    int file = open(path, O_RDWR);
    if (file < 0) return DRIVER_NOT_LOADED;
    block = mmap(NULL, SLOTS * 8 * MOST_BOARDS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
  }
  int code = (int)block[FAIL_INIT];
  users++;
  if (code) nvmlShutdown();
  return code;
}
API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API const char *nvmlErrorString(int code) { return code == GPU_LOST ? "GPU is lost" : code == NO_PERMISSION ? "Insufficient Permissions" : "stub error"; }

API int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "570.86.15"); return SUCCESS; }
API int nvmlDeviceGetCount_v2(unsigned *count) { if (!block) return UNINITIALIZED; *count = (unsigned)block[BOARDS]; return SUCCESS; }
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (!block) return UNINITIALIZED;
  if ((int64_t)index >= block[BOARDS]) return INVALID_ARGUMENT;
  *handle = (void *)(intptr_t)(index + 1);
  if (board(*handle)[FAIL_ALL] == GPU_LOST) return GPU_LOST;
  return SUCCESS;
}
API int nvmlDeviceGetName(void *handle, char *text, unsigned length) { ENTER(handle); snprintf(text, length, "%s", products[board(handle)[PRODUCT]]); return SUCCESS; }
API int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
  ENTER(handle);
  snprintf(text, length, "GPU-%08x-1111-2222-3333-%012llx", 0xabc00000u + (unsigned)index_of(handle), (unsigned long long)block[SERIES]);
  return SUCCESS;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
API int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *info) {
  ENTER(handle);
  memset(info, 0, sizeof *info);
  info->bus = 0x3bu + (unsigned)index_of(handle);
  snprintf(info->address, sizeof info->address, "00000000:%02X:00.0", info->bus);
  return SUCCESS;
}
API int nvmlDeviceGetVbiosVersion(void *handle, char *text, unsigned length) { ENTER(handle); snprintf(text, length, "96.00.A5.00.01"); return SUCCESS; }
API int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { ENTER(handle); *major = 9; *minor = 0; return SUCCESS; }
API int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) { ENTER(handle); *current = *pending = (unsigned)board(handle)[MIG]; return SUCCESS; }
API int nvmlDeviceGetVirtualizationMode(void *handle, unsigned *mode) { ENTER(handle); *mode = (unsigned)board(handle)[VIRTUAL]; return SUCCESS; }
API int nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) { ENTER(handle); *mode = 1; return SUCCESS; }
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute; };
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *found) {
  ENTER(handle);
  unsigned held = *count, there = (unsigned)board(handle)[PROCESSES];
  *count = there;
  if (there > held) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < there && found; i++) found[i] = (struct process){.pid = 5000000 + i, .memory = 1 << 20}; /* above Linux's largest */
  return SUCCESS;
}
API int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) {
  ENTER(handle);
  *mhz = (unsigned)board(handle)[type == 2 ? MEM_MHZ : SM_MHZ];
  board(handle)[CLOCK_READS] += type != 2;
  return SUCCESS;
}
API int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { ENTER(handle); (void)sensor; *celsius = (unsigned)board(handle)[TEMP_C]; return SUCCESS; }
API int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatt) { ENTER(handle); *milliwatt = (unsigned)board(handle)[LIMIT_MW]; return SUCCESS; }
API int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt) {
  ENTER(handle);
  if (board(handle)[FAIL_USAGE]) return (int)board(handle)[FAIL_USAGE];
  *milliwatt = (unsigned)board(handle)[AVERAGE_MW];
  return SUCCESS;
}
API int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoule) {
  ENTER(handle);
  if (board(handle)[FAIL_ENERGY]) return (int)board(handle)[FAIL_ENERGY];
  *millijoule = (unsigned long long)board(handle)[ENERGY_MJ];
  return SUCCESS;
}
API int nvmlDeviceGetSupportedMemoryClocks(void *handle, unsigned *count, unsigned *mhz) {
  ENTER(handle);
  if (*count < 2 || !mhz) { *count = 2; return INSUFFICIENT_SIZE; }
  *count = 2; mhz[0] = 3201; mhz[1] = 1593;
  return SUCCESS;
}
API int nvmlDeviceGetSupportedGraphicsClocks(void *handle, unsigned memory, unsigned *count, unsigned *mhz) {
  ENTER(handle);
  if (memory != 3201) return NOT_FOUND;
  if (*count < 110 || !mhz) { *count = 110; return INSUFFICIENT_SIZE; }
  *count = 110;
  for (unsigned i = 0; i < 110; i++) mhz[i] = 1980 - 15 * i;
  return SUCCESS;
}
#ifdef OLD_DRIVER
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) { ENTER(handle); *reasons = (unsigned long long)board(handle)[REASONS]; return SUCCESS; }
#else
API int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) { ENTER(handle); *reasons = (unsigned long long)board(handle)[REASONS]; return SUCCESS; }
struct field { unsigned id, scope; int64_t stamp, latency; int type, code; union { double d; unsigned u; unsigned long ul; unsigned long long ull; } value; };
API int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields) {
  ENTER(handle);
  volatile int64_t *me = board(handle);
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  int64_t at_ns = at.tv_sec * 1000000000 + at.tv_nsec; /* GAP_NS: the longest pause between two readings */
  if (me[READ_NS] && at_ns - me[READ_NS] > me[GAP_NS]) me[GAP_NS] = at_ns - me[READ_NS];
  me[READ_NS] = at_ns;
  me[READS]++;
  if (me[READ_DELAY_US]) usleep((unsigned)me[READ_DELAY_US]);
  for (int i = 0; i < count; i++) {
    struct timespec now;
    if (me[TELL_TIME]) { /* the power is the time: microseconds of the host's monotonic clock, as milliwatt below 20 kW */
      clock_gettime(CLOCK_MONOTONIC, &now);
      me[POWER_MW] = (now.tv_sec % 20) * 1000000 + now.tv_nsec / 1000;
    }
    int64_t value = fields[i].id == 185 ? me[AVERAGE_MW] : fields[i].scope ? me[MODULE_MW] : me[POWER_MW];
    int known = (fields[i].id == 185 && !fields[i].scope) || fields[i].id == 186;
    fields[i].code = !known || value < 0 ? NOT_SUPPORTED : (int)me[FAIL_FIELDS];
    fields[i].type = (int)me[VALUE_TYPE];
    if (fields[i].type == 0) fields[i].value.d = (double)value;
    else if (fields[i].type == 1) fields[i].value.u = (unsigned)value;
    else fields[i].value.ull = (unsigned long long)value;
  }
  return SUCCESS;
}
API int nvmlDeviceSetGpuLockedClocks(void *handle, unsigned low, unsigned high) {
  ENTER(handle);
  volatile int64_t *me = board(handle);
  if (!me[MAY_LOCK] || getenv("WATTPRINT_NVML_STUB_NO_RIGHT")) return NO_PERMISSION;
  if (me[FAIL_LOCK]) return (int)me[FAIL_LOCK];
  me[LOCK_LOW] = low; me[LOCK_HIGH] = high; me[SM_MHZ] = high; me[LOCK_CALLS]++;
  return SUCCESS;
}
API int nvmlDeviceResetGpuLockedClocks(void *handle) {
  ENTER(handle);
  volatile int64_t *me = board(handle);
  if (!me[MAY_LOCK] || getenv("WATTPRINT_NVML_STUB_NO_RIGHT")) return NO_PERMISSION;
  me[LOCK_LOW] = me[LOCK_HIGH] = 0; me[RESET_CALLS]++;
  return SUCCESS;
}
#endif
