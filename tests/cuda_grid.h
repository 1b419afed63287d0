/*
 * The grid of every launch, forced: results must not depend on it. With the linker's --wrap=onep_cuda_launch every
 * launch comes here first.
 */
#ifndef ONEPASS_TEST_CUDA_GRID_H
#define ONEPASS_TEST_CUDA_GRID_H

/* Blocks of every launch from here on; 0: as the library plans. */
void cuda_force_grid(unsigned blocks);

#endif
