/*
 * Cross-entropy of rows whose columns are spread over the ranks of MPI: each makes the states of its columns, one
 * MPI_Allgather brings those of all to all, each merges them and makes the loss and the gradient of its own columns.
 * Every rank also makes the loss of the whole rows in one call, which a real program could not, and compares. For any
 * number of ranks:
 *
 *     mpicc -std=c11 examples/vocab_parallel_mpi.c $(pkg-config --cflags --libs onepass) -lm -o vocab_parallel
 *     mpirun -n 4 ./vocab_parallel
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "onepass.h"

enum { ROWS = 4, COLUMNS = 20000 };

static float logits[ROWS][COLUMNS], gradient[ROWS][COLUMNS], whole_gradient[ROWS][COLUMNS];
static int64_t labels[ROWS] = {7, 8191, 8192, 19999}; /* of all columns: most are another rank's */

/* A rank that cannot go on must not leave the others waiting for it. */
static void must(onepass_status status)
{
    if (status != ONEPASS_OK) {
        fprintf(stderr, "%s\n", onepass_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static onepass_tensor tensor(void *data, onepass_dtype dtype, int ndim, int64_t *shape, int64_t *strides)
{
    return (onepass_tensor){
        .data = data, .device = {ONEPASS_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape, .strides = strides};
}

static int64_t begin_of(int rank, int ranks)
{
    return (int64_t)COLUMNS * rank / ranks;
}

/* The loss of the rows, of which this rank has only its columns, and the gradient of those. */
static double loss_over_ranks(onepass_handle *handle, int rank, int ranks)
{
    const onepass_dtype f32 = ONEPASS_F32, f64 = ONEPASS_F64, i64 = ONEPASS_I64;
    int64_t rows = ROWS, begin = begin_of(rank, ranks), most = 0;
    double value = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t columns = begin_of(r + 1, ranks) - begin_of(r, ranks);
        most = columns > most ? columns : most;
    }
    int64_t width = onepass_shard_states_width(most, 1, 0), merged = onepass_shard_statistics_width(1, 0);
    double *states = malloc((size_t)(ROWS * width) * sizeof *states);
    double *gathered = malloc((size_t)(ranks * ROWS * width) * sizeof *gathered);
    double *statistics = malloc((size_t)(ROWS * merged) * sizeof *statistics);
    if (!states || !gathered || !statistics)
        MPI_Abort(MPI_COMM_WORLD, 1);

    int64_t shape[2] = {ROWS, begin_of(rank + 1, ranks) - begin}, strides[2] = {COLUMNS, 1}, sent[2] = {ROWS, width};
    int64_t gathered_shape[3] = {ranks, ROWS, width}, merged_shape[2] = {ROWS, merged};
    onepass_tensor x = tensor(&logits[0][begin], f32, 2, shape, strides), y = tensor(labels, i64, 1, &rows, NULL);
    onepass_tensor mine = tensor(states, f64, 2, sent, NULL);
    onepass_tensor all = tensor(gathered, f64, 3, gathered_shape, NULL);
    onepass_tensor of_rows = tensor(statistics, f64, 2, merged_shape, NULL);
    onepass_tensor result = tensor(&value, f64, 0, NULL, NULL),
                   grad = tensor(&gradient[0][begin], f32, 2, shape, strides);
    onepass_logits_options options = {.size = sizeof options,
                                      .reduction = ONEPASS_VALID,
                                      .labels = &y,
                                      .first_column = begin,
                                      .total_columns = COLUMNS};
    must(onepass_shard_states(handle, &x, NULL, NULL, &options, &mine));
    MPI_Allgather(states, (int)(ROWS * width), MPI_DOUBLE, gathered, (int)(ROWS * width), MPI_DOUBLE, MPI_COMM_WORLD);
    must(onepass_shard_merge(handle, &all, &of_rows));
    must(onepass_shard_loss(handle, &x, NULL, &of_rows, &options, &result, &grad, NULL));
    free(states);
    free(gathered);
    free(statistics);
    return value;
}

int main(int argc, char **argv)
{
    const onepass_dtype f32 = ONEPASS_F32, f64 = ONEPASS_F64, i64 = ONEPASS_I64;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    onepass_handle *handle;
    must(onepass_create(NULL, &handle));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        (&logits[0][0])[i] = (float)sin(0.37 * i) * 5;
    double loss = loss_over_ranks(handle, rank, ranks), whole = 0, least, most, apart = 0;

    int64_t rows = ROWS, shape[2] = {ROWS, COLUMNS};
    onepass_tensor x = tensor(logits, f32, 2, shape, NULL), y = tensor(labels, i64, 1, &rows, NULL);
    onepass_tensor value = tensor(&whole, f64, 0, NULL, NULL), grad = tensor(whole_gradient, f32, 2, shape, NULL);
    onepass_logits_options options = {.size = sizeof options, .reduction = ONEPASS_VALID};
    must(onepass_cross_entropy_logits_labels(handle, &x, &y, &options, &value, &grad));
    onepass_destroy(handle);
    for (int row = 0; row < ROWS; row++)
        for (int64_t k = begin_of(rank, ranks); k < begin_of(rank + 1, ranks); k++)
            apart = fmax(apart, fabs((double)gradient[row][k] - whole_gradient[row][k]));

    MPI_Allreduce(&loss, &least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&loss, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &apart, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0)
        printf("over %d ranks  %.17g, on every rank\nin one call   %.17g\ngradients are up to %.1e apart\n", ranks,
               loss, whole, apart);
    MPI_Finalize();
    return least == most && fabs(whole - loss) < 1e-6 * whole && apart < 1e-7 ? 0 : 1;
}
