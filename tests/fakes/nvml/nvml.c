/*
 * A libnvidia-ml.so.1 without a driver: it answers from the scenario file that KVITEJ_FAKE_NVML names.
 *
 * Compiled against NVIDIA's own nvml.h, so that a wrong layout on either side shows up as a wrong number. The file
 * is read again whenever it changes, by any call; what it does not say is "not supported". Its grammar stands in
 * __init__.py beside this file.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nvml.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_GPUS 64
#define MOST_FAULTS 64
#define MOST_LINKS 36
#define MOST_PROFILES 32
#define MOST_INSTANCES 16
#define MOST_PROCESSES 64
#define MOST_XIDS 16
#define HANG 9999
#define LONGEST_HANG_MS 20000

enum { COMPUTE, GRAPHICS, MPS };

typedef struct { unsigned kind, pid, instance; unsigned long long used; } Process;
typedef struct { int known; nvmlGpuInstanceProfileInfo_v2_t info; unsigned size, starts, start[16]; } Profile;
typedef struct { unsigned gpu, id, profile, start; unsigned long long used; char uuid[96]; } Instance;
typedef struct { int active, type; char pci[32]; } NvLink;

typedef struct {
    char uuid[96], name[96], pci[32], cpus[128], numa[64], path[512], cluster[40];
    unsigned minor;
    int has_memory, peers, mig, ecc, rows, retired, throttle, recovery, fabric;
    unsigned long long total, reserved, used, corrected, uncorrected;
    unsigned row[4], page[3], clique;
    unsigned processes, instances, xids;
    Process process[MOST_PROCESSES];
    Profile profile[MOST_PROFILES];
    Instance instance[MOST_INSTANCES];
    NvLink link[MOST_LINKS];
    struct { unsigned sequence, code; } xid[MOST_XIDS];
} Gpu;

static struct {
    char driver[80];
    unsigned gpus, generation, faults;
    struct { char function[96]; int error, gpu; } fault[MOST_FAULTS];
    Gpu gpu[MOST_GPUS];
} now;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char read_from[4096];
static struct stat read_at;
static int initialised;
static unsigned initialised_generation, delivered;

static const struct { const char *name; int code; } ERRORS[] = {
    {"not-supported", NVML_ERROR_NOT_SUPPORTED},   {"no-permission", NVML_ERROR_NO_PERMISSION},
    {"lost", NVML_ERROR_GPU_IS_LOST},              {"reset-required", NVML_ERROR_RESET_REQUIRED},
    {"unknown", NVML_ERROR_UNKNOWN},               {"driver-not-loaded", NVML_ERROR_DRIVER_NOT_LOADED},
    {"version-mismatch", NVML_ERROR_LIB_RM_VERSION_MISMATCH},
    {"function-not-found", NVML_ERROR_FUNCTION_NOT_FOUND}, {"hang", HANG},
};

/* The rest of a line behind its keyword. */
static void copy(char *to, size_t size, const char *rest) {
    snprintf(to, size, "%s", rest);
}

static void say_profile(Gpu *gpu, const char *rest) {
    unsigned number, count = 0;
    Profile profile = {.known = 1};
    char starts[128] = "", name[64] = "";
    if (sscanf(rest, "%u %u %63s %u %llu %u %u %u %127s", &number, &profile.info.id, name, &profile.info.sliceCount,
               &profile.info.memorySizeMB, &profile.info.multiprocessorCount, &profile.size,
               &profile.info.instanceCount, starts) != 9 || number >= MOST_PROFILES)
        return;
    snprintf(profile.info.name, sizeof profile.info.name, "MIG %s", name);
    for (char *word = strtok(starts, ","); word && count < 16; word = strtok(NULL, ","))
        profile.start[count++] = (unsigned)atoi(word);
    profile.starts = count;
    gpu->profile[number] = profile;
}

static void say_links(Gpu *gpu, const char *rest) {
    int first, last;
    char type[16] = "", pci[32] = "";
    if (sscanf(rest, "%d-%d %15s %31s", &first, &last, type, pci) < 3) {
        if (sscanf(rest, "%d %15s %31s", &first, type, pci) < 2)
            return;
        last = first;
    }
    for (int link = first; link <= last && link < MOST_LINKS; link++) {
        gpu->link[link].active = strcmp(type, "off") ? 1 : 2;
        gpu->link[link].type = !strcmp(type, "switch") ? NVML_NVLINK_DEVICE_TYPE_SWITCH
                               : !strcmp(type, "gpu")  ? NVML_NVLINK_DEVICE_TYPE_GPU
                               : !strcmp(type, "cpu")  ? NVML_NVLINK_DEVICE_TYPE_IBMNPU
                                                       : NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        copy(gpu->link[link].pci, sizeof gpu->link[link].pci, pci);
    }
}

static void say_of_gpu(Gpu *gpu, const char *word, const char *rest) {
    Process *process = &gpu->process[gpu->processes];
    Instance *instance = &gpu->instance[gpu->instances];
    if (!strcmp(word, "uuid")) copy(gpu->uuid, sizeof gpu->uuid, rest);
    else if (!strcmp(word, "name")) copy(gpu->name, sizeof gpu->name, rest);
    else if (!strcmp(word, "pci")) copy(gpu->pci, sizeof gpu->pci, rest);
    else if (!strcmp(word, "numa")) copy(gpu->numa, sizeof gpu->numa, rest);
    else if (!strcmp(word, "cpus")) copy(gpu->cpus, sizeof gpu->cpus, rest);
    else if (!strcmp(word, "path")) copy(gpu->path, sizeof gpu->path, rest);
    else if (!strcmp(word, "memory"))
        gpu->has_memory = sscanf(rest, "%llu %llu %llu", &gpu->total, &gpu->reserved, &gpu->used) == 3;
    else if (!strcmp(word, "peers")) gpu->peers = 1;
    else if (!strcmp(word, "mig")) gpu->mig = !strcmp(rest, "on") ? 2 : 1;
    else if (!strcmp(word, "ecc")) gpu->ecc = sscanf(rest, "%llu %llu", &gpu->corrected, &gpu->uncorrected) == 2;
    else if (!strcmp(word, "rows"))
        gpu->rows = sscanf(rest, "%u %u %u %u", gpu->row, gpu->row + 1, gpu->row + 2, gpu->row + 3) == 4;
    else if (!strcmp(word, "retired"))
        gpu->retired = sscanf(rest, "%u %u %u", gpu->page, gpu->page + 1, gpu->page + 2) == 3;
    else if (!strcmp(word, "throttle")) gpu->throttle = 1 + (int)strtol(rest, NULL, 0);
    else if (!strcmp(word, "recovery")) gpu->recovery = 1 + atoi(rest);
    else if (!strcmp(word, "fabric")) gpu->fabric = sscanf(rest, "%39s %u", gpu->cluster, &gpu->clique) == 2;
    else if (!strcmp(word, "profile")) say_profile(gpu, rest);
    else if (!strcmp(word, "nvlink")) say_links(gpu, rest);
    else if (!strcmp(word, "no-processes")) gpu->processes = 0;
    else if (!strcmp(word, "no-instances")) gpu->instances = 0;
    else if (!strcmp(word, "process") && gpu->processes < MOST_PROCESSES) {
        char kind[16] = "compute", used[32] = "";
        process->instance = 0xFFFFFFFF;
        if (sscanf(rest, "%u %31s %15s %u", &process->pid, used, kind, &process->instance) < 2) return;
        process->used = strcmp(used, "unknown") ? strtoull(used, NULL, 10) : (unsigned long long)NVML_VALUE_NOT_AVAILABLE;
        process->kind = !strcmp(kind, "graphics") ? GRAPHICS : !strcmp(kind, "mps") ? MPS : COMPUTE;
        gpu->processes++;
    } else if (!strcmp(word, "instance") && gpu->instances < MOST_INSTANCES) {
        instance->gpu = (unsigned)(gpu - now.gpu);
        copy(instance->uuid, sizeof instance->uuid, "");
        if (sscanf(rest, "%u %u %u %llu %95s", &instance->id, &instance->profile, &instance->start, &instance->used,
                   instance->uuid) >= 4)
            gpu->instances++;
    } else if (!strcmp(word, "xid") && gpu->xids < MOST_XIDS) {
        if (sscanf(rest, "%u %u", &gpu->xid[gpu->xids].sequence, &gpu->xid[gpu->xids].code) == 2) gpu->xids++;
    }
}

static void say_fault(const char *rest) {
    char error[32] = "";
    int gpu = -1;
    if (now.faults == MOST_FAULTS || sscanf(rest, "%95s %31s %d", now.fault[now.faults].function, error, &gpu) < 2)
        return;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (!strcmp(error, ERRORS[i].name)) {
            now.fault[now.faults].error = ERRORS[i].code;
            now.fault[now.faults++].gpu = gpu;
            return;
        }
}

static void read_scenario(void) {
    const char *path = getenv("KVITEJ_FAKE_NVML");
    struct stat at;
    if (!path || stat(path, &at)) return;
    int same = !strcmp(path, read_from);
    if (same && at.st_ino == read_at.st_ino && at.st_size == read_at.st_size &&
        at.st_mtim.tv_sec == read_at.st_mtim.tv_sec && at.st_mtim.tv_nsec == read_at.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (!same) delivered = 0;
    copy(read_from, sizeof read_from, path);
    read_at = at;
    memset(&now, 0, sizeof now);
    Gpu *gpu = NULL;
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "#\r\n")] = 0;
        char *word = line + strspn(line, " \t");
        char *rest = word + strcspn(word, " \t");
        if (*rest) *rest++ = 0;
        rest += strspn(rest, " \t");
        for (size_t end = strlen(rest); end && strchr(" \t", rest[end - 1]); end--) rest[end - 1] = 0;
        if (!*word) continue;
        if (!strcmp(word, "gpu")) {
            unsigned index = (unsigned)atoi(rest);
            gpu = index < MOST_GPUS ? &now.gpu[index] : NULL;
            if (gpu && index >= now.gpus) now.gpus = index + 1;
            if (gpu) gpu->minor = index;
        } else if (!strcmp(word, "driver")) copy(now.driver, sizeof now.driver, rest);
        else if (!strcmp(word, "generation")) now.generation = (unsigned)atoi(rest);
        else if (!strcmp(word, "gpus")) now.gpus = (unsigned)atoi(rest);
        else if (!strcmp(word, "fault")) say_fault(rest);
        else if (gpu) say_of_gpu(gpu, word, rest);
    }
    fclose(file);
}

static int fault_of(const char *function, int gpu) {
    for (unsigned i = 0; i < now.faults; i++)
        if ((now.fault[i].gpu < 0 || now.fault[i].gpu == gpu) &&
            (!strcmp(now.fault[i].function, function) || (!strcmp(now.fault[i].function, "*") && gpu >= 0)))
            return now.fault[i].error;
    return NVML_SUCCESS;
}

/* Ends with the mutex held; a hang lasts until the file no longer says so. */
static nvmlReturn_t enter(const char *function, int gpu) {
    pthread_mutex_lock(&mutex);
    read_scenario();
    int error = fault_of(function, gpu);
    for (int ms = 0; error == HANG; ms += 5) {
        if (ms > LONGEST_HANG_MS) return NVML_ERROR_TIMEOUT;
        pthread_mutex_unlock(&mutex);
        usleep(5000);
        pthread_mutex_lock(&mutex);
        read_scenario();
        error = fault_of(function, gpu);
    }
    if (error) return (nvmlReturn_t)error;
    if (strncmp(function, "nvmlInit", 8)) {
        if (!initialised) return NVML_ERROR_UNINITIALIZED;
        if (initialised_generation != now.generation) return NVML_ERROR_UNKNOWN;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t leave(nvmlReturn_t answer) {
    pthread_mutex_unlock(&mutex);
    return answer;
}

/* A handle is the address of a GPU, or of one of its instances. */
static int gpu_of(const void *handle) {
    const char *at = handle, *first = (const char *)now.gpu;
    return at < first || at >= (const char *)(now.gpu + MOST_GPUS) ? -1 : (int)((size_t)(at - first) / sizeof(Gpu));
}

static Instance *instance_of(const void *handle) {
    int gpu = gpu_of(handle);
    return gpu < 0 || handle == (const void *)&now.gpu[gpu] ? NULL : (Instance *)handle;
}

static const Profile *profile_by_id(const Gpu *gpu, unsigned id) {
    for (unsigned i = 0; i < MOST_PROFILES; i++)
        if (gpu->profile[i].known && gpu->profile[i].info.id == id) return &gpu->profile[i];
    return NULL;
}

#define BEGIN(handle)                                               \
    nvmlReturn_t failed = enter(__func__, gpu_of(handle));          \
    if (failed) return leave(failed);                               \
    if (gpu_of(handle) < 0) return leave(NVML_ERROR_INVALID_ARGUMENT); \
    Gpu *gpu = &now.gpu[gpu_of(handle)];                            \
    (void)gpu
#define NEEDS(condition) if (!(condition)) return leave(NVML_ERROR_NOT_SUPPORTED)
#define DONE return leave(NVML_SUCCESS)

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    nvmlReturn_t failed = enter(__func__, -1);
    (void)flags;
    if (failed) return leave(failed);
    initialised = 1;
    initialised_generation = now.generation;
    DONE;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    initialised = 0;
    DONE;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) { return result ? "an error of the fake" : "success"; }

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    nvmlReturn_t failed = enter(__func__, -1);
    if (failed) return leave(failed);
    copy(version, length, now.driver);
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    nvmlReturn_t failed = enter(__func__, -1);
    if (failed) return leave(failed);
    *count = now.gpus;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    nvmlReturn_t failed = enter(__func__, (int)index);
    if (failed) return leave(failed);
    if (index >= now.gpus) return leave(NVML_ERROR_INVALID_ARGUMENT);
    *device = (nvmlDevice_t)&now.gpu[index];
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    BEGIN(device);
    Instance *instance = instance_of(device);
    copy(uuid, length, instance ? instance->uuid : gpu->uuid);
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    BEGIN(device);
    copy(name, length, gpu->name);
    DONE;
}

static void fill_pci(nvmlPciInfo_t *pci, const char *text) {
    memset(pci, 0, sizeof *pci);
    copy(pci->busId, sizeof pci->busId, text);
    copy(pci->busIdLegacy, sizeof pci->busIdLegacy, strlen(text) > 4 ? text + 4 : text);
    sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    BEGIN(device);
    fill_pci(pci, gpu->pci);
    DONE;
}

static int memory_of(const Gpu *gpu, const Instance *instance, nvmlMemory_v2_t *memory) {
    if (!gpu->has_memory) return 0;
    memory->total = gpu->total, memory->reserved = gpu->reserved, memory->used = gpu->used;
    if (instance) {
        const Profile *profile = profile_by_id(gpu, instance->profile);
        memory->total = profile ? profile->info.memorySizeMB << 20 : 0;
        memory->reserved = 0, memory->used = instance->used;
    }
    memory->free = memory->total - memory->reserved - memory->used;
    return 1;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    BEGIN(device);
    if (memory->version != nvmlMemory_v2) return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEEDS(memory_of(gpu, instance_of(device), memory));
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlMemory_v2_t more;
    BEGIN(device);
    NEEDS(memory_of(gpu, instance_of(device), &more));
    memory->total = more.total, memory->free = more.free, memory->used = more.used + more.reserved;
    DONE;
}

static nvmlReturn_t processes(const Gpu *gpu, const Instance *instance, unsigned kind, unsigned *count,
                              nvmlProcessInfo_t *infos) {
    unsigned room = infos ? *count : 0, found = 0;
    for (unsigned i = 0; i < gpu->processes; i++) {
        const Process *process = &gpu->process[i];
        if (process->kind != kind || (instance && process->instance != instance->id)) continue;
        if (found < room)
            infos[found] = (nvmlProcessInfo_t){process->pid, process->used, process->instance,
                                               process->instance == 0xFFFFFFFF ? 0xFFFFFFFF : 0};
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESSES(name, kind)                                                                  \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) { \
        BEGIN(device);                                                                         \
        return leave(processes(gpu, instance_of(device), kind, count, infos));                 \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS)

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    BEGIN(device);
    NEEDS(gpu->mig);
    *current = *pending = gpu->mig == 2;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    BEGIN(device);
    *count = gpu->mig ? 7 : 0;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig) {
    BEGIN(device);
    NEEDS(gpu->mig == 2);
    if (index >= gpu->instances || !*gpu->instance[index].uuid) return leave(NVML_ERROR_NOT_FOUND);
    *mig = (nvmlDevice_t)&gpu->instance[index];
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    BEGIN(device);
    NEEDS(instance_of(device));
    *id = instance_of(device)->id;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned profile,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info) {
    BEGIN(device);
    NEEDS(profile < MOST_PROFILES && gpu->profile[profile].known);
    if (info->version != nvmlGpuInstanceProfileInfo_v2) return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    *info = gpu->profile[profile].info;
    info->version = nvmlGpuInstanceProfileInfo_v2;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile_id,
                                                                  nvmlGpuInstancePlacement_t *placements,
                                                                  unsigned *count) {
    BEGIN(device);
    const Profile *profile = profile_by_id(gpu, profile_id);
    NEEDS(profile);
    for (unsigned i = 0; placements && i < profile->starts; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){profile->start[i], profile->size};
    *count = profile->starts;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instances,
                                              unsigned *count) {
    BEGIN(device);
    NEEDS(gpu->mig == 2);
    *count = 0;
    for (unsigned i = 0; i < gpu->instances; i++)
        if (gpu->instance[i].profile == profile_id) instances[(*count)++] = (nvmlGpuInstance_t)&gpu->instance[i];
    DONE;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info) {
    BEGIN(handle);
    Instance *instance = instance_of(handle);
    const Profile *profile = profile_by_id(gpu, instance->profile);
    *info = (nvmlGpuInstanceInfo_t){(nvmlDevice_t)gpu, instance->id, instance->profile,
                                    {instance->start, profile ? profile->size : 0}};
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                        nvmlGpuTopologyLevel_t *level) {
    BEGIN(device);
    char path[sizeof gpu->path], *rest = path, *word = NULL;
    copy(path, sizeof path, gpu->path);
    for (int i = gpu_of(other); i >= 0 && (word = strtok_r(rest, " ", &rest)); i--) continue;
    NEEDS(word);
    *level = !strcmp(word, "PIX")    ? NVML_TOPOLOGY_SINGLE
             : !strcmp(word, "PXB")  ? NVML_TOPOLOGY_MULTIPLE
             : !strcmp(word, "PHB")  ? NVML_TOPOLOGY_HOSTBRIDGE
             : !strcmp(word, "NODE") ? NVML_TOPOLOGY_NODE
             : !strcmp(word, "SYS")  ? NVML_TOPOLOGY_SYSTEM
                                     : NVML_TOPOLOGY_INTERNAL;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t index,
                                           nvmlGpuP2PStatus_t *status) {
    BEGIN(device);
    NEEDS(index == NVML_P2P_CAPS_INDEX_NVLINK);
    *status = gpu->peers && now.gpu[gpu_of(other)].peers ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *active) {
    BEGIN(device);
    if (link >= MOST_LINKS) return leave(NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(gpu->link[link].active);
    *active = gpu->link[link].active == 1 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci) {
    BEGIN(device);
    NEEDS(link < MOST_LINKS && gpu->link[link].active == 1);
    fill_pci(pci, gpu->link[link].pci);
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link,
                                                        nvmlIntNvLinkDeviceType_t *type) {
    BEGIN(device);
    NEEDS(link < MOST_LINKS && gpu->link[link].active == 1);
    *type = gpu->link[link].type;
    DONE;
}

/* "0-3,8" as bits, 64 to a word. */
static void fill_set(const char *text, unsigned long *set, unsigned size) {
    memset(set, 0, size * sizeof *set);
    for (unsigned first, last; *text; text += strcspn(text, ","), text += *text == ',') {
        int read = sscanf(text, "%u-%u", &first, &last);
        if (read < 1) return;
        for (unsigned bit = first; bit <= (read == 2 ? last : first) && bit / 64 < size; bit++)
            set[bit / 64] |= 1UL << bit % 64;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *set,
                                                nvmlAffinityScope_t scope) {
    BEGIN(device);
    (void)scope;
    NEEDS(*gpu->numa);
    fill_set(gpu->numa, set, size);
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *set) {
    BEGIN(device);
    NEEDS(*gpu->cpus);
    fill_set(gpu->cpus, set, size);
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                nvmlEccCounterType_t counter, unsigned long long *count) {
    BEGIN(device);
    (void)counter;
    NEEDS(gpu->ecc);
    *count = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? gpu->corrected : gpu->uncorrected;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned *count,
                                              unsigned long long *addresses) {
    BEGIN(device);
    NEEDS(gpu->retired);
    unsigned found = gpu->page[cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR];
    unsigned room = addresses ? *count : 0;
    for (unsigned i = 0; i < found && i < room; i++) addresses[i] = 0x1000 * (i + 1);
    *count = found;
    return leave(found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending) {
    BEGIN(device);
    NEEDS(gpu->retired);
    *pending = gpu->page[2] ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                              unsigned *pending, unsigned *failure) {
    BEGIN(device);
    NEEDS(gpu->rows && !(gpu->mig == 2 && gpu->instances));
    *corrected = gpu->row[0], *uncorrected = gpu->row[1], *pending = gpu->row[2], *failure = gpu->row[3];
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    BEGIN(device);
    NEEDS(gpu->throttle);
    *reasons = (unsigned long long)gpu->throttle - 1;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    BEGIN(device);
    for (int i = 0; i < count; i++) {
        int known = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION && gpu->recovery;
        values[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.uiVal = known ? (unsigned)gpu->recovery - 1 : 0;
    }
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *fabric) {
    BEGIN(device);
    NEEDS(gpu->fabric);
    if (fabric->version != nvmlGpuFabricInfo_v2) return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlGpuFabricInfo_v2_t *info = (nvmlGpuFabricInfo_v2_t *)fabric;
    for (int i = 0; i < NVML_GPU_FABRIC_UUID_LEN; i++) {
        unsigned byte = 0;
        sscanf(gpu->cluster + 2 * i, "%2x", &byte);
        info->clusterUuid[i] = (unsigned char)byte;
    }
    info->status = NVML_SUCCESS, info->cliqueId = gpu->clique, info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
    info->healthMask = 0;
    DONE;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t failed = enter(__func__, -1);
    if (failed) return leave(failed);
    *set = (nvmlEventSet_t)&delivered;
    DONE;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    BEGIN(device);
    (void)types, (void)set;
    DONE;
}

/* Each Xid once, in the order of their numbers; never waits. */
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout) {
    nvmlReturn_t failed = enter(__func__, -1);
    (void)set, (void)timeout;
    if (failed) return leave(failed);
    unsigned best = 0, code = 0;
    Gpu *of = NULL;
    for (unsigned i = 0; i < MOST_GPUS; i++)
        for (unsigned j = 0; j < now.gpu[i].xids; j++) {
            unsigned sequence = now.gpu[i].xid[j].sequence;
            if (sequence > delivered && (!of || sequence < best))
                best = sequence, code = now.gpu[i].xid[j].code, of = &now.gpu[i];
        }
    if (!of) return leave(NVML_ERROR_TIMEOUT);
    delivered = best;
    *data = (nvmlEventData_t){(nvmlDevice_t)of, nvmlEventTypeXidCriticalError, code, 0xFFFFFFFF, 0xFFFFFFFF};
    DONE;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    nvmlReturn_t failed = enter(__func__, -1);
    (void)set;
    return leave(failed);
}
