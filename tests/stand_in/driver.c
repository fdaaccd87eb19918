/* A CUDA driver that is not there. THIS PROVES FLOW, NEVER NUMBERS: launches do nothing, so nothing is ever computed.
 *
 * Built by the tests as libcuda.so.1 and libnvidia-ml.so.1 (one library, two names). Device memory is host memory of a
 * size that the test sets; copies are real; kernels are accepted and dropped. What this file does not export, the caller
 * fails to load, and says so with the name of the call.
 *
 * Environment, read once a process:
 *   STAND_IN_LEDGER=FILE     shared account of all processes (see `struct ledger`); without it each counts for itself
 *   STAND_IN_MEMORY=BYTES    memory of the card (default 8 GiB)
 *   STAND_IN_CONTEXT=BYTES   what a context takes (default 300 MiB)
 *   STAND_IN_DEVICES=N       cards (default 1)
 *   STAND_IN_VERSION=N       what cuDriverGetVersion says (default 12080)
 *   STAND_IN_CAPABILITY=MN   compute capability, 86 for 8.6 (default)
 *   STAND_IN_FAIL=RULES      comma-separated: NAME:N=CODE fails the N-th call of NAME with CODE, NAME:N+=CODE all from the
 *                            N-th on, NAME:N!=CODE the N-th and from then on every call of any name: a lost context
 *   STAND_IN_LOG=FILE        appends one line a call, NAME ARGUMENT
 *   STAND_IN_NO_NVML=1       nvmlInit_v2 fails
 * The file of the ledger begins with eight bytes, little-endian: what other programs hold. A test may change them at any
 * time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       NOT_FOUND = 500 };
enum { SLOTS = 64, RULES = 16, NAMES = 64 };

struct slot { int64_t pid; uint64_t bytes; };
struct ledger { uint64_t others; struct slot slots[SLOTS]; };
struct rule { char name[64]; long at; char kind; int code; };
struct counter { const char *name; long calls; };
struct block { void *at; size_t bytes; struct block *next; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ledger own, *ledger;
static struct slot *mine;
static struct rule rules[RULES];
static struct counter counters[NAMES];
static struct block *blocks;
static int rule_count, lost, retained, log_fd = -1;
static uint64_t memory_size, context_size;
static long devices, version, capability;

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void read_rules(const char *text) {
    while (text && *text && rule_count < RULES) {
        struct rule *rule = &rules[rule_count];
        char how[3] = "";
        if (sscanf(text, "%63[^:]:%ld%2[+!=]%d", rule->name, &rule->at, how, &rule->code) < 4) {
            fprintf(stderr, "stand-in driver: can't read the rule '%s'\n", text);
            abort();
        }
        rule->kind = how[0];
        rule_count++;
        text = strchr(text, ',');
        if (text) text++;
    }
}

static void set_up(void) {
    if (ledger) return;
    memory_size = number("STAND_IN_MEMORY", 8ull << 30);
    context_size = number("STAND_IN_CONTEXT", 300ull << 20);
    devices = number("STAND_IN_DEVICES", 1);
    version = number("STAND_IN_VERSION", 12080);
    capability = number("STAND_IN_CAPABILITY", 86);
    read_rules(getenv("STAND_IN_FAIL"));
    if (getenv("STAND_IN_LOG")) log_fd = open(getenv("STAND_IN_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ledger = &own;
    const char *path = getenv("STAND_IN_LEDGER");
    if (path) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        void *shared = MAP_FAILED;
        if (fd >= 0 && ftruncate(fd, sizeof(struct ledger)) == 0)
            shared = mmap(NULL, sizeof(struct ledger), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (shared == MAP_FAILED) { perror("stand-in driver: the ledger"); abort(); }
        ledger = shared;
        close(fd);
    }
    for (int i = 0; i < SLOTS && !mine; i++) {
        int64_t owner = __atomic_load_n(&ledger->slots[i].pid, __ATOMIC_SEQ_CST);
        int gone = owner == 0 || (kill(owner, 0) != 0 && errno == ESRCH);
        if (gone && __atomic_compare_exchange_n(&ledger->slots[i].pid, &owner, getpid(), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            mine = &ledger->slots[i];
            mine->bytes = 0;
        }
    }
    if (!mine) { fprintf(stderr, "stand-in driver: the ledger is full\n"); abort(); }
}

static uint64_t used(void) {
    uint64_t sum = __atomic_load_n(&ledger->others, __ATOMIC_SEQ_CST);
    for (int i = 0; i < SLOTS; i++) {
        int64_t owner = ledger->slots[i].pid;
        if (owner && (owner == getpid() || kill(owner, 0) == 0)) sum += ledger->slots[i].bytes;
    }
    return sum < memory_size ? sum : memory_size;
}

/* Notes a call; nonzero is the code with which it must fail. The caller holds the lock. */
static int called(const char *name, uint64_t argument) {
    set_up();
    struct counter *counter = counters;
    while (counter->name && strcmp(counter->name, name) != 0)
        if (++counter == counters + NAMES) { fprintf(stderr, "stand-in driver: too many names\n"); abort(); }
    counter->name = name;
    counter->calls++;
    if (log_fd >= 0) dprintf(log_fd, "%s %llu\n", name, (unsigned long long)argument);
    if (lost) return lost;
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->name, name) != 0) continue;
        if (counter->calls == rule->at || (rule->kind == '+' && counter->calls > rule->at)) {
            if (rule->kind == '!') lost = rule->code;
            return rule->code;
        }
    }
    return OK;
}

#define CALL(name, argument) \
    pthread_mutex_lock(&lock); \
    int code = called(name, (uint64_t)(argument)); \
    if (code != OK) { pthread_mutex_unlock(&lock); return code; }
#define DONE(value) do { int done = (value); pthread_mutex_unlock(&lock); return done; } while (0)

/* ---- the driver ---- */

int cuInit(unsigned flags) { CALL("cuInit", flags) DONE(devices > 0 ? OK : NO_DEVICE); }
int cuDriverGetVersion(int *out) { CALL("cuDriverGetVersion", 0) *out = version; DONE(OK); }
int cuDeviceGetCount(int *out) { CALL("cuDeviceGetCount", 0) *out = devices; DONE(OK); }
int cuDeviceGet(int *out, int ordinal) {
    CALL("cuDeviceGet", ordinal)
    *out = ordinal;
    DONE(ordinal >= 0 && ordinal < devices ? OK : INVALID_DEVICE);
}
int cuDeviceGetName(char *out, int length, int device) {
    CALL("cuDeviceGetName", device)
    snprintf(out, length, "Stand-in without arithmetic");
    DONE(OK);
}
int cuDeviceTotalMem_v2(size_t *out, int device) { CALL("cuDeviceTotalMem_v2", device) *out = memory_size; DONE(OK); }
int cuDeviceGetPCIBusId(char *out, int length, int device) {
    CALL("cuDeviceGetPCIBusId", device)
    snprintf(out, length, "0000:%02x:00.0", device + 1);
    DONE(OK);
}
int cuDeviceGetUuid_v2(unsigned char *out, int device) {
    CALL("cuDeviceGetUuid_v2", device)
    memset(out, device + 1, 16);
    DONE(OK);
}
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    CALL("cuDeviceGetAttribute", attribute)
    int value;
    switch (attribute) {
    case 1: case 2: case 3: value = 1024; break;                 /* threads per block; block x, y */
    case 4: value = 64; break;                                   /* block z */
    case 5: value = 2147483647; break;                           /* grid x */
    case 6: case 7: value = 65535; break;                        /* grid y, z */
    case 8: value = 49152; break;                                /* shared memory per block */
    case 10: value = 32; break;                                  /* warp size */
    case 16: value = 28; break;                                  /* multiprocessors */
    case 75: value = capability / 10; break;
    case 76: value = capability % 10; break;
    case 97: value = 101376; break;                              /* shared memory per block, opted in */
    case 115: value = 1; break;                                  /* memory pools */
    default:
        fprintf(stderr, "stand-in driver: cuDeviceGetAttribute(%d) is not implemented\n", attribute);
        abort();
    }
    *out = value;
    (void)device;
    DONE(OK);
}
int cuDevicePrimaryCtxRetain(void **out, int device) {
    CALL("cuDevicePrimaryCtxRetain", device)
    if (!retained && used() + context_size > memory_size) DONE(OUT_OF_MEMORY);
    if (!retained) mine->bytes += context_size;
    retained++;
    *out = (void *)0x1000;
    DONE(OK);
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    CALL("cuDevicePrimaryCtxRelease_v2", device)
    if (retained && --retained == 0) mine->bytes -= context_size;
    DONE(OK);
}
int cuCtxSetCurrent(void *context) { CALL("cuCtxSetCurrent", context != NULL) DONE(OK); }
int cuCtxGetCurrent(void **out) { CALL("cuCtxGetCurrent", 0) *out = retained ? (void *)0x1000 : NULL; DONE(OK); }
int cuCtxSynchronize(void) { CALL("cuCtxSynchronize", 0) DONE(OK); }

static int take(uintptr_t *out, size_t bytes) {
    size_t rounded = (bytes + 511) / 512 * 512;
    if (bytes == 0) return INVALID_VALUE;
    if (rounded > memory_size || used() + rounded > memory_size) return OUT_OF_MEMORY;
    void *at = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct block *block = malloc(sizeof *block);
    if (at == MAP_FAILED || !block) return OUT_OF_MEMORY;
    *block = (struct block){ at, rounded, blocks };
    blocks = block;
    mine->bytes += rounded;
    *out = (uintptr_t)at;
    return OK;
}
static int give(uintptr_t at) {
    for (struct block **link = &blocks; *link; link = &(*link)->next)
        if ((uintptr_t)(*link)->at == at) {
            struct block *block = *link;
            *link = block->next;
            munmap(block->at, block->bytes);
            mine->bytes -= block->bytes;
            free(block);
            return OK;
        }
    return INVALID_VALUE;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CALL("cuMemGetInfo_v2", 0)
    *total = memory_size;
    *free_bytes = memory_size - used();
    DONE(OK);
}
int cuMemAlloc_v2(uintptr_t *out, size_t bytes) { CALL("cuMemAlloc_v2", bytes) DONE(take(out, bytes)); }
int cuMemAllocAsync(uintptr_t *out, size_t bytes, void *stream) {
    CALL("cuMemAllocAsync", bytes)
    (void)stream;
    DONE(take(out, bytes));
}
int cuMemFree_v2(uintptr_t at) { CALL("cuMemFree_v2", at) DONE(give(at)); }
int cuMemFreeAsync(uintptr_t at, void *stream) { CALL("cuMemFreeAsync", at) (void)stream; DONE(give(at)); }
int cuMemAllocHost_v2(void **out, size_t bytes) {
    CALL("cuMemAllocHost_v2", bytes)
    *out = NULL;
    DONE(posix_memalign(out, 4096, bytes) == 0 ? OK : OUT_OF_MEMORY);
}
int cuMemFreeHost(void *at) { CALL("cuMemFreeHost", 0) free(at); DONE(OK); }
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream) {
    CALL("cuMemcpyHtoDAsync_v2", bytes)
    memcpy((void *)to, from, bytes);
    (void)stream;
    DONE(OK);
}
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream) {
    CALL("cuMemcpyDtoHAsync_v2", bytes)
    memcpy(to, (void *)from, bytes);
    (void)stream;
    DONE(OK);
}
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) {
    CALL("cuMemcpyDtoDAsync_v2", bytes)
    memmove((void *)to, (void *)from, bytes);
    (void)stream;
    DONE(OK);
}
int cuMemsetD8Async(uintptr_t to, unsigned char value, size_t bytes, void *stream) {
    CALL("cuMemsetD8Async", bytes)
    memset((void *)to, value, bytes);
    (void)stream;
    DONE(OK);
}
struct copy_2d {
    size_t src_x, src_y; int src_type; const char *src_host; uintptr_t src_device; void *src_array; size_t src_pitch;
    size_t dst_x, dst_y; int dst_type; char *dst_host; uintptr_t dst_device; void *dst_array; size_t dst_pitch;
    size_t width, height;
};
int cuMemcpy2DAsync_v2(const struct copy_2d *copy, void *stream) {
    CALL("cuMemcpy2DAsync_v2", copy->width * copy->height)
    const char *from = copy->src_type == 1 ? copy->src_host : (const char *)copy->src_device;
    char *to = copy->dst_type == 1 ? copy->dst_host : (char *)copy->dst_device;
    for (size_t row = 0; row < copy->height; row++)
        memcpy(to + (copy->dst_y + row) * copy->dst_pitch + copy->dst_x,
               from + (copy->src_y + row) * copy->src_pitch + copy->src_x, copy->width);
    (void)stream;
    DONE(OK);
}

static uintptr_t handles = 0x2000;
static int handle(void **out) { *out = (void *)(handles += 16); return OK; }
int cuStreamCreate(void **out, unsigned flags) { CALL("cuStreamCreate", flags) DONE(handle(out)); }
int cuStreamDestroy_v2(void *stream) { CALL("cuStreamDestroy_v2", stream != NULL) DONE(OK); }
int cuStreamSynchronize(void *stream) { CALL("cuStreamSynchronize", stream != NULL) DONE(OK); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    CALL("cuStreamWaitEvent", flags)
    (void)stream; (void)event;
    DONE(OK);
}
/* An event is the number of launches before it: what runs twice as many kernels takes twice as long. Loops that repeat
 * work until it fills a time come to an end; what they measure is nobody's speed. */
static uint64_t launches;
int cuEventCreate(void **out, unsigned flags) {
    CALL("cuEventCreate", flags)
    *out = calloc(1, sizeof launches);
    DONE(*out ? OK : OUT_OF_MEMORY);
}
int cuEventDestroy_v2(void *event) { CALL("cuEventDestroy_v2", event != NULL) free(event); DONE(OK); }
int cuEventRecord(uint64_t *event, void *stream) {
    CALL("cuEventRecord", event != NULL)
    *event = launches;
    (void)stream;
    DONE(OK);
}
int cuEventSynchronize(void *event) { CALL("cuEventSynchronize", event != NULL) DONE(OK); }
int cuEventQuery(void *event) { CALL("cuEventQuery", event != NULL) DONE(OK); }
int cuEventElapsedTime(float *out, const uint64_t *from, const uint64_t *to) {
    CALL("cuEventElapsedTime", from != to)
    *out = 0.1f * (*to - *from); /* milliseconds */
    DONE(OK);
}
int cuEventElapsedTime_v2(float *out, const uint64_t *from, const uint64_t *to) { return cuEventElapsedTime(out, from, to); }

int cuModuleLoadData(void **out, const void *image) { CALL("cuModuleLoadData", strlen(image)) DONE(handle(out)); }
int cuModuleUnload(void *module) { CALL("cuModuleUnload", module != NULL) DONE(OK); }
int cuModuleGetFunction(void **out, void *module, const char *name) {
    CALL("cuModuleGetFunction", strlen(name))
    (void)module;
    DONE(handle(out));
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    CALL("cuFuncSetAttribute", value)
    (void)function; (void)attribute;
    DONE(OK);
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    CALL("cuLaunchKernel", (uint64_t)gx * gy * gz)
    launches++;
    (void)function; (void)bx; (void)by; (void)bz; (void)shared; (void)stream; (void)arguments; (void)extra;
    DONE(OK);
}

static const char *name_of(int code) {
    switch (code) {
    case OK: return "CUDA_SUCCESS";
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NOT_INITIALIZED: return "CUDA_ERROR_NOT_INITIALIZED";
    case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case 214: return "CUDA_ERROR_ECC_UNCORRECTABLE";
    case 218: return "CUDA_ERROR_INVALID_PTX";
    case 222: return "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case 700: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case 701: return "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    case 709: return "CUDA_ERROR_CONTEXT_IS_DESTROYED";
    case 719: return "CUDA_ERROR_LAUNCH_FAILED";
    case 802: return "CUDA_ERROR_SYSTEM_NOT_READY";
    case 803: return "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    case 999: return "CUDA_ERROR_UNKNOWN";
    default: return "CUDA_ERROR_OF_THE_STAND_IN";
    }
}
int cuGetErrorName(int code, const char **out) { *out = name_of(code); return OK; }
int cuGetErrorString(int code, const char **out) { *out = name_of(code); return OK; }

/* ---- NVML: 0 is success, 9 driver not loaded, 2 invalid argument ---- */

struct nvml_memory { unsigned long long total, free, used; };
struct nvml_memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlInit_v2(void) {
    CALL("nvmlInit_v2", 0)
    DONE(getenv("STAND_IN_NO_NVML") ? 9 : OK);
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { CALL("nvmlShutdown", 0) DONE(OK); }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "error of the stand-in"; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    CALL("nvmlSystemGetDriverVersion", length)
    snprintf(out, length, "0.0-stand-in");
    DONE(OK);
}
int nvmlDeviceGetCount_v2(unsigned *out) { CALL("nvmlDeviceGetCount_v2", 0) *out = devices; DONE(OK); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    CALL("nvmlDeviceGetHandleByIndex_v2", index)
    *out = (void *)(uintptr_t)(0x100 + index);
    DONE((long)index < devices ? OK : 2);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) {
    CALL("nvmlDeviceGetHandleByPciBusId_v2", 0)
    unsigned number = 0;
    int read = sscanf(bus, "%*x:%x", &number);
    *out = (void *)(uintptr_t)(0x100 + number - 1);
    DONE(read == 1 ? OK : 2);
}
int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *out) {
    CALL("nvmlDeviceGetMemoryInfo", device != NULL)
    uint64_t now = used();
    *out = (struct nvml_memory){ memory_size, memory_size - now, now };
    DONE(OK);
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct nvml_memory_v2 *out) {
    CALL("nvmlDeviceGetMemoryInfo_v2", device != NULL)
    uint64_t now = used();
    out->total = memory_size, out->reserved = 0, out->free = memory_size - now, out->used = now;
    DONE(OK);
}
