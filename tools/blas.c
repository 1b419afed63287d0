/* BLAS beside the library. See blas.h. */
#include "blas.h"

#include <dlfcn.h>
#include <string.h>

/* Object pointers become function pointers by their bytes: ISO C has no conversion. */
#define FUNCTION(to, symbol) memcpy(&(to), &(symbol), sizeof(to))

bool blas_open(tool_blas *blas, const char *name)
{
    static const struct {
        const char *name, *file, *set_threads;
    } known[] = {{"openblas", "libopenblas.so.0", "openblas_set_num_threads"},
                 {"blis", "libblis.so.4", "bli_thread_set_num_threads"}};
    *blas = (tool_blas){0};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) != 0)
            continue;
        blas->library = dlopen(known[i].file, RTLD_NOW | RTLD_LOCAL);
        if (!blas->library)
            return false;
        blas->gemm[0] = dlsym(blas->library, "cblas_sgemm");
        blas->gemm[1] = dlsym(blas->library, "cblas_dgemm");
        blas->set_threads = dlsym(blas->library, known[i].set_threads);
        if (blas->gemm[0] && blas->gemm[1] && blas->set_threads)
            return true;
        blas_close(blas);
    }
    return false;
}

void blas_close(tool_blas *blas)
{
    if (blas->library)
        dlclose(blas->library);
    *blas = (tool_blas){0};
}

void blas_set_threads(const tool_blas *blas, int threads)
{
    void (*set)(long); /* BLIS takes a 64-bit number, OpenBLAS an int: the register is the same */
    FUNCTION(set, blas->set_threads);
    set(threads);
}

void blas_multiply(const tool_blas *blas, element_type type, int m, int n, int k, const void *a, const void *b, void *c)
{
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    if (type == ELEMENT_F32) {
        void (*sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
        FUNCTION(sgemm, blas->gemm[0]);
        sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, m, n, k, 1, a, k, b, k, 0, c, n);
    } else {
        void (*dgemm)(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *,
                      int);
        FUNCTION(dgemm, blas->gemm[1]);
        dgemm(ROW_MAJOR, PLAIN, TRANSPOSED, m, n, k, 1, a, k, b, k, 0, c, n);
    }
}
