/*
 * Read before every file of the wheel: functions that later versions of glibc entered into their tables anew are taken
 * under their first names, which every version still has. So a wheel built on a new system runs on an old one;
 * tests/python/test_wheel.py holds it to what its name promises.
 *
 * What changed with each new name is nothing to us: libpthread and libdl became part of libc (2.34, 2.32), exp and log
 * stopped setting errno by way of a wrapper (2.29), strtol learned binary numbers (2.38).
 */
#ifdef __gnu_linux__ /* glibc, as the compiler knows: no header may be read before a file has said what it wants */
#if defined(__x86_64__)
#define ONEP_FIRST(name, first) __asm__(".symver " #name "," #first "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define ONEP_FIRST(name, first) __asm__(".symver " #name "," #first "@GLIBC_2.17")
#endif
#endif

#ifdef ONEP_FIRST
ONEP_FIRST(dlclose, dlclose);
ONEP_FIRST(dlerror, dlerror);
ONEP_FIRST(dlopen, dlopen);
ONEP_FIRST(dlsym, dlsym);
ONEP_FIRST(exp, exp);
ONEP_FIRST(log, log);
ONEP_FIRST(pthread_create, pthread_create);
ONEP_FIRST(pthread_once, pthread_once);
ONEP_FIRST(pthread_sigmask, pthread_sigmask);
ONEP_FIRST(__isoc23_strtol, strtol);
#undef ONEP_FIRST
#endif
