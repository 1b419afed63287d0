/* Calls on a GPU that are repeated, captured and made at the same time; parts of test_cuda.c. */
#ifndef ONEPASS_TEST_CUDA_REPEATED_H
#define ONEPASS_TEST_CUDA_REPEATED_H

/* The same bits in every run, beside other work and on any grid. */
void cuda_test_determinism(void);

/* Two threads with a handle each. */
void cuda_test_threads(void);

/* Graphs that are captured and replayed, several at once, and more of them than a page has tickets. */
void cuda_test_graphs(void);

#endif
