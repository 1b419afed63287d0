/*
 * Every operator with extents of 0, 1, 2 and one beyond a vector, in every combination, type, level, layout and choice
 * of optional tensors, on one thread or on two, as it falls. Every tensor and the workspace have exactly their bytes:
 * on the heap, where AddressSanitizer sees a byte too many, and before a forbidden page, where any build does. What
 * comes out is what the reference says.
 */
#include <float.h>
#include <stdio.h>

#include "every_call.h"

static const int64_t extents[] = {0, 1, 2, 17};
enum { EXTENTS = sizeof extents / sizeof extents[0] };

static double unit_of(onep_type type)
{
    return type == ONEP_F16 ? 0x1p-10 : type == ONEP_BF16 ? 0x1p-7 : type == ONEP_F32 ? 0x1p-20 : 0x1p-45;
}

static void try_kind(call_kind kind, uint64_t stream)
{
    static onepass_handle *handles[ONEP_LEVELS][2];
    every_call *expected = call_make(kind, 1, stream);
    for (int level = ONEP_REF; level < ONEP_LEVELS; level++) {
        if (level != ONEP_REF && !test_covers((onep_level)level))
            continue;
        int32_t threads = level == ONEP_REF ? 1 : 1 + (int32_t)(stream >> level & 1);
        onepass_handle **handle = &handles[level][threads - 1];
        if (!*handle)
            *handle = test_handle((onep_level)level, threads);
        test_context("%s, %s, %s, %d threads, %d rows, %d deep, %d columns, variant %d, memory %d",
                     call_name(kind.operator_id), onep_type_name(kind.type), onep_level_name((onep_level)level),
                     (int)threads, (int)kind.rows, (int)kind.depth, (int)kind.columns, kind.variant, (int)kind.memory);
        every_call *call = level == ONEP_REF ? expected : call_make(kind, 1, stream);
        onepass_status wanted = call_is_refused(call) ? ONEPASS_INVALID_ARGUMENT : ONEPASS_OK;
        CHECK(call_run(call, *handle) == wanted, "%s", onepass_last_error());
        if (call != expected) {
            call_compare(call, expected, 64 * unit_of(kind.type), 64 * unit_of(kind.type));
            call_free(call);
        }
    }
    call_free(expected);
}

int main(void)
{
    test_begin("test_extents");
    test_print_levels();
    test_random random = test_random_stream(0);
    for (int operator_id = 0; operator_id < CALL_OPERATORS; operator_id++)
        for (int type = 0; type < ONEP_FLOAT_TYPES; type++)
            for (int rows = 0; rows < EXTENTS; rows++)
                for (int columns = 0; columns < EXTENTS; columns++)
                    for (int depth = 0; depth < (call_has_depth((call_operator)operator_id) ? EXTENTS : 1); depth++)
                        for (int variant = 0; variant < CALL_VARIANTS; variant++)
                            for (int memory = 0; memory < CALL_MEMORIES; memory++) {
                                /* A quick run takes one in six, others every time. */
                                uint64_t stream = test_random_bits(&random);
                                if (stream % (uint64_t)test_one_in(6) != 0)
                                    continue;
                                if (operator_id >= CALL_LINEAR && operator_id <= CALL_LINEAR_BACKWARD &&
                                    variant % 10 != 0)
                                    continue; /* its only variants are the layouts */
                                try_kind((call_kind){(call_operator)operator_id, (onep_type)type, extents[rows],
                                                     extents[depth], extents[columns], variant, (call_memory)memory},
                                         stream);
                            }
    return test_end();
}
