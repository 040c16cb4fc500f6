/* A driver for tests: NVML's functions as nvml.h declares them, answered by the test over a socket.

   Question: one letter, the GPU's index (4 bytes), 32 bytes of nonce. Answer: code, size as stated, bytes that follow
   (4 bytes each), bytes. A code of 99999 crashes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
    unsigned int environment, ccFeature, devToolsMode;
} nvmlConfComputeSystemState_t;

typedef struct {
    unsigned int certChainSize, attestationCertChainSize;
    unsigned char certChain[0x1000], attestationCertChain[0x1400];
} nvmlConfComputeGpuCertificate_t;

typedef struct {
    unsigned int isCecAttestationReportPresent, attestationReportSize, cecAttestationReportSize;
    unsigned char nonce[0x20], attestationReport[0x2000], cecAttestationReport[0x1000];
} nvmlConfComputeGpuAttestationReport_t;

_Static_assert(sizeof(nvmlConfComputeGpuCertificate_t) == 9224, "nvml.h");
_Static_assert(sizeof(nvmlConfComputeGpuAttestationReport_t) == 12332, "nvml.h");

static int initialised;

static int whole(int line, void *data, size_t size) {
    for (size_t at = 0; at < size;) {
        ssize_t got = read(line, (char *)data + at, size - at);
        if (got <= 0) return 0;
        at += (size_t)got;
    }
    return 1;
}

static nvmlReturn_t ask(char what, uint32_t index, const void *nonce, void *answer, size_t room, unsigned int *stated) {
    const char *place = getenv("CLOISTER_FAKE_NVML");
    if (what != 'I' && !initialised) return 1; /* NVML_ERROR_UNINITIALIZED */
    if (!place) return 9;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, place, sizeof address.sun_path - 1);
    int line = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(line, (struct sockaddr *)&address, sizeof address)) return 9;
    unsigned char question[37] = {(unsigned char)what};
    memcpy(question + 1, &index, 4);
    if (nonce) memcpy(question + 5, nonce, 32);
    uint32_t head[3];
    if (write(line, question, sizeof question) != sizeof question || !whole(line, head, sizeof head)) return 999;
    if (head[0] == 99999) abort();
    if (head[2] > room || !whole(line, answer, head[2])) return 7;
    if (stated) *stated = head[1];
    close(line);
    return (nvmlReturn_t)head[0];
}

nvmlReturn_t nvmlInit_v2(void) {
    nvmlReturn_t code = ask('I', 0, NULL, NULL, 0, NULL);
    initialised = code == 0;
    return code;
}

const char *nvmlErrorString(nvmlReturn_t code) { return code == 3 ? "Not Supported" : "Some Error"; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { return ask('N', 0, NULL, NULL, 0, count); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(uintptr_t)(0x7f0000000000ull + index); /* as wide as a pointer */
    return ask('H', index, NULL, NULL, 0, NULL);
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state) {
    return ask('S', 0, NULL, state, sizeof *state, NULL);
}

static uint32_t index_of(nvmlDevice_t device) { return (uint32_t)((uintptr_t)device - 0x7f0000000000ull); }

nvmlReturn_t nvmlDeviceGetConfComputeGpuCertificate(nvmlDevice_t device, nvmlConfComputeGpuCertificate_t *chain) {
    return ask('C', index_of(device), NULL, chain->attestationCertChain, sizeof chain->attestationCertChain,
               &chain->attestationCertChainSize);
}

nvmlReturn_t nvmlDeviceGetConfComputeGpuAttestationReport(nvmlDevice_t device,
                                                          nvmlConfComputeGpuAttestationReport_t *report) {
    return ask('R', index_of(device), report->nonce, report->attestationReport, sizeof report->attestationReport,
               &report->attestationReportSize);
}
