/*
 * Rows of logits in the registers of a cluster of blocks (Hopper): every logit is read once, every gradient written
 * once.
 *
 * A row is cut into slices of 32 x 128 bytes, one per warp, whatever its alignment; a slice of nothing but columns
 * beyond the row does not exist. A warp has its slice copied to shared memory (a bulk copy, for the next row while this
 * one is worked on), takes it into registers, adds up what it can against its own maximum, and sends that state to
 * every block of the cluster. When all states are there, every warp merges them in the order of slices, and writes its
 * slice of the gradients. No block waits for another but through these states, and the bits of a row depend on the row
 * alone: neither on the number of blocks in a cluster nor on the cluster that has it.
 *
 * Chunks of rows are claimed from a counter: equal shares would leave clusters up to 40% of the time apart. The claim
 * travels with the state of slice 0.
 */
#ifndef ONEP_LOGITS_CLUSTER_CUH
#define ONEP_LOGITS_CLUSTER_CUH

#include "cuda/hopper.cuh"
#include "logits/cuda_slot.cuh"
#include "logits/cuda_team.cuh"

enum {
    VECTORS = ONEP_LOGITS_SLICE_BYTES / 512, /* of 16 bytes, per lane */
    PARTS = 4,                               /* of a lane's sum: each has 16 elements, or 8, one after the other */
    MOST_SLICES = ONEP_LOGITS_MAX_WARPS * ONEP_LOGITS_MAX_BLOCKS,
};

/* ---- a slice in registers ---------------------------------------------------------------------------------------- */

template <class T> struct slice_of {
    enum { LANES = element<T>::lanes, ELEMENTS = VECTORS * LANES, COLUMNS = 32 * ELEMENTS };
    pack<T> at[VECTORS]; /* vector j of lane l has columns (32 j + l) LANES and on */
};

/* The larger ones of two halves; NaN if either is. */
__device__ __forceinline__ unsigned larger_halves(bf16, unsigned a, unsigned b)
{
    unsigned y;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
__device__ __forceinline__ unsigned larger_halves(f16, unsigned a, unsigned b)
{
    unsigned y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
__device__ __forceinline__ unsigned larger_halves(float, unsigned a, unsigned b)
{
    return __float_as_uint(larger(__uint_as_float(a), __uint_as_float(b)));
}

/* The largest of a warp; NaN, which max.NaN makes positive, if there is one. As integers: one instruction, not ten. */
__device__ __forceinline__ float largest_of_warp(float x)
{
    int bits = __float_as_int(x);
    bits = __reduce_max_sync(~0u, bits ^ (bits >> 31 & 0x7fffffff));
    return __int_as_float(bits ^ (bits >> 31 & 0x7fffffff));
}

/* The largest element of the slice, in every lane. */
template <class T> __device__ __forceinline__ float largest_of(const slice_of<T> &x)
{
    unsigned most = reinterpret_cast<const uint4 *>(x.at)->x;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        const uint4 raw = *reinterpret_cast<const uint4 *>(&x.at[j]);
        most = larger_halves(T(), most,
                             larger_halves(T(), larger_halves(T(), raw.x, raw.y), larger_halves(T(), raw.z, raw.w)));
    }
    float largest;
    if (sizeof(T) == 4) {
        largest = __uint_as_float(most);
    } else {
        union {
            unsigned word;
            T half[4 / sizeof(T)];
        } both = {most};
        largest = larger((float)widen(both.half[0]), (float)widen(both.half[4 / sizeof(T) - 1]));
    }
    return largest_of_warp(largest);
}

/* The compiler forgets what it knows of the slice: otherwise it keeps the unpacked values, twice as many registers. */
template <class T> __device__ __forceinline__ void forget(slice_of<T> &x)
{
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        uint4 &raw = *reinterpret_cast<uint4 *>(&x.at[j]);
        asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
    }
}

__device__ __forceinline__ pack<float> packed(float, const float (&x)[4])
{
    pack<float> p = {{x[0], x[1], x[2], x[3]}};
    return p;
}
__device__ __forceinline__ unsigned two_halves(bf16, float low, float high)
{
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ unsigned two_halves(f16, float low, float high)
{
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <class T> __device__ __forceinline__ pack<T> packed(T, const float (&x)[8])
{
    pack<T> p;
    *reinterpret_cast<uint4 *>(&p) = make_uint4(two_halves(T(), x[0], x[1]), two_halves(T(), x[2], x[3]),
                                                two_halves(T(), x[4], x[5]), two_halves(T(), x[6], x[7]));
    return p;
}

/* By halves: every term is rounded two or three times. */
__device__ __forceinline__ float sum_of(const float (&x)[4])
{
    return (x[0] + x[1]) + (x[2] + x[3]);
}
__device__ __forceinline__ float sum_of(const float (&x)[8])
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/*
 * The vector of 16 bytes that begins `shift` bytes, up to 15, after vector i of shared memory: from two of them. WORDS
 * is shift / 4, a constant, so that the choice among words costs nothing.
 */
template <int WORDS> __device__ __forceinline__ uint4 shifted_vector(const uint4 *from, int i, unsigned bits)
{
    const uint4 low = from[i], high = from[i + 1];
    const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    return make_uint4(__funnelshift_r(words[WORDS], words[WORDS + 1], bits),
                      __funnelshift_r(words[WORDS + 1], words[WORDS + 2], bits),
                      __funnelshift_r(words[WORDS + 2], words[WORDS + 3], bits),
                      __funnelshift_r(words[WORDS + 3], words[WORDS + 4 < 8 ? WORDS + 4 : 7], bits));
}
/* All vectors of this lane, each `shift` bytes after where vectors begin. */
template <class T, int WORDS>
__device__ __forceinline__ void take_shifted(const uint4 *from, int lane, unsigned bits, slice_of<T> &x)
{
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        *reinterpret_cast<uint4 *>(&x.at[j]) = shifted_vector<WORDS>(from, 32 * j + lane, bits);
}
/* f(j, vector) for them, one after the other. */
template <int WORDS, class F>
__device__ __forceinline__ void for_shifted(const uint4 *from, int lane, unsigned bits, const F &f)
{
#pragma unroll 1
    for (int j = 0; j < VECTORS; j++)
        f(j, shifted_vector<WORDS>(from, 32 * j + lane, bits));
}
/* Calls f<WORDS>(bits) for a shift. */
#define ONEP_WITH_SHIFT(shift, call)                                                                                   \
    switch ((shift) >> 2) {                                                                                            \
    case 0:                                                                                                            \
        call(0);                                                                                                       \
        break;                                                                                                         \
    case 1:                                                                                                            \
        call(1);                                                                                                       \
        break;                                                                                                         \
    case 2:                                                                                                            \
        call(2);                                                                                                       \
        break;                                                                                                         \
    default:                                                                                                           \
        call(3);                                                                                                       \
    }

/* ---- its softmax ------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_of(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static const float LN_2 = 0.693147181f;

/*
 * exp((v - m) / temperature) = 2^(v k - r) 2^-error, with k = log2(e) / temperature, r = m k rounded, error = m k - r.
 * One fma and one ex2 per element: off by |v - m| k u, beside ex2's 2^-22.5. m is the slice's or the row's maximum;
 * where all is -inf, r is 0 and every exponential as well.
 */
struct slice_softmax {
    float k, m, r, error;

    __device__ __forceinline__ slice_softmax(float k_, float m_)
        : k(k_), m(m_), r(m_ == minus_infinity(0.0f) ? 0.0f : __fmul_rn(m_, k_)),
          error(m_ == minus_infinity(0.0f) ? 0.0f : fmaf(m_, k_, -r))
    {
    }
    __device__ __forceinline__ float exponent(float v) const
    {
        return fmaf(v, k, -r);
    }
    /* What turns exponentials against this maximum into ones against the row's. */
    __device__ __forceinline__ float factor(float row_m) const
    {
        return m == minus_infinity(0.0f) ? 0.0f : __fmul_rn(exp2_of(__fmul_rn(m - row_m, k)), exp2_of(-error));
    }
};

/* The state of one softmax over a slice: its maximum, columns at it, the sum of the other exponentials. */
struct softmax_state {
    float m, ties, tail;
};

/* Counts v among the columns at the maximum, or adds its exponential to the others'. */
__device__ __forceinline__ void add_exponential(float v, float m, float e, int &ties, float &tail)
{
    asm("{\n\t.reg .pred p;\n\tsetp.eq.f32 p, %2, %3;\n\t@p add.s32 %0, %0, 1;\n\t@!p add.f32 %1, %1, %4;\n\t}"
        : "+r"(ties), "+f"(tail)
        : "f"(v), "f"(m), "f"(e));
}
/* sum += x y, but for x = 0, whatever y is. */
__device__ __forceinline__ void add_product(float x, float y, float &sum)
{
    asm("{\n\t.reg .pred p;\n\tsetp.neu.f32 p, %1, 0f00000000;\n\t@p fma.rn.f32 %0, %1, %2, %0;\n\t}"
        : "+f"(sum)
        : "f"(x), "f"(y));
}
/* `tail`: over the warp, against the rounded maximum. */
__device__ __forceinline__ softmax_state state_of(const slice_softmax &of, int ties, double tail)
{
    softmax_state s = {of.m, 0, __fmul_rn((float)tail, exp2_of(-of.error))};
    ties = __reduce_add_sync(~0u, ties);
    s.ties = of.m == minus_infinity(0.0f) ? 0.0f : (float)ties;
    return s;
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

/* The warp of slice s has rank 32 s and on: what is done once per row is done by rank 0. */
struct slice_team {
    static __device__ __forceinline__ int rank()
    {
        unsigned block;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
        return (int)(block * blockDim.x + threadIdx.x);
    }
};

__device__ __forceinline__ unsigned in_block(unsigned address, unsigned block)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}
__device__ __forceinline__ void store_async(unsigned there, unsigned barrier_there, float4 x)
{
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
        "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier_there)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(unsigned to, const void *from, unsigned bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* What threads wrote to shared memory comes before what bulk copies write there. */
__device__ __forceinline__ void fence_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* States of all slices of a row, sent by the cluster's warps; two alternate. */
template <int PLANES> struct exchange {
    float4 states[2][PLANES][MOST_SLICES];
    unsigned long long full[2];
};

/* One warp's part in the work of a cluster: its rows, and exchanges with the other warps. For whole warps. */
template <int PLANES> struct cluster_rows {
    const onep_logits_rows &rows;
    unsigned *counter; /* of chunks claimed */
    int lane, slice, slices;
    unsigned blocks;
    exchange<PLANES> &states;
    int row, next;     /* this row and the next one, -1: none */
    int left;          /* rows of its chunk behind the next one */
    bool ends_a_chunk; /* this row is the last of its chunk */
    int claim;         /* of slice 0: the chunk after the next row's */
    int parity;        /* of exchanges so far */
    unsigned arrivals; /* parities of the two mbarriers of exchanges, by bits */

    __device__ __forceinline__ cluster_rows(const onep_logits_rows &all, int slices_of_row, unsigned *chunk_counter,
                                            exchange<PLANES> &shared_states)
        : rows(all), counter(chunk_counter), lane(threadIdx.x & 31), slice(from_lane_0(slice_team::rank() >> 5)),
          slices(slices_of_row), states(shared_states), left(0), ends_a_chunk(false), claim(0), parity(0), arrivals(0)
    {
        asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    }

    /* Of slice 0. Opaque: the loop over rows would be compiled twice, with and without results. */
    __device__ __forceinline__ bool has_results() const
    {
        return opaque(slice) == 0;
    }

    /* The first row of a chunk is the next one, if there is such a chunk. */
    __device__ __forceinline__ void begin_chunk(int chunk)
    {
        next = chunk < (int)rows.chunks ? chunk * (int)rows.chunk : -1;
        left = min((int)rows.chunk, (int)rows.count - next) - 1;
    }
    /* This row becomes the next one, and that the one after it. True if the claim is used up. */
    __device__ __forceinline__ bool advance(int next_claim)
    {
        row = next;
        ends_a_chunk = left == 0;
        if (next >= 0 && left > 0) {
            next++;
            left--;
            return false;
        }
        begin_chunk(next_claim);
        return true;
    }

    /*
     * All warps of the cluster, those without a slice too. `claims`: shared, two words. `filled`: this warp's mbarriers
     * of copies, so many.
     */
    __device__ __forceinline__ void begin(int *claims, unsigned filled, int count)
    {
        if (threadIdx.x == 0)
            for (int i = 0; i < 2; i++)
                mbarrier_init(shared_address(&states.full[i]), 1);
        if (lane == 0) {
            for (int i = 0; i < count; i++)
                mbarrier_init(filled + 8 * i, 1);
            mbarrier_init_fence();
        }
        /* Slices that do not exist have no mass: whoever merges need not know which ones those are. */
        for (int s = slices + (int)threadIdx.x; s < MOST_SLICES; s += (int)blockDim.x)
            for (int i = 0; i < 2 * PLANES; i++)
                states.states[i / PLANES][i % PLANES][s] = make_float4(minus_infinity(0.0f), 0, 0, 0);
        if (slice_team::rank() == 0) {
            const int first = (int)atomicAdd(counter, 2u);
            for (unsigned b = 0; b < blocks; b++)
                for (int i = 0; i < 2; i++)
                    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(in_block(shared_address(claims + i), b)),
                                 "r"(first + i)
                                 : "memory");
        }
        cluster_sync(); /* before any block sends a state or a copy lands, and the claims are there */
        begin_chunk(claims[0]);
        claim = claims[1];
        step(claim);
    }
    /* To the next row, with the claim that came with slice 0's state; slice 0 takes another one for the row after. */
    __device__ __forceinline__ void step(int next_claim)
    {
        if (advance(next_claim) && slice == 0 && lane == 0)
            claim = (int)atomicAdd(counter, 1u);
    }
    /* For the state that slice 0 sends; asked for late, for the counter is far away. */
    __device__ __forceinline__ float claim_word() const
    {
        return __int_as_float(from_lane_0(claim));
    }

    /* ---- exchanges ---- */

    /* Sends one of `planes` planes of this slice's state to all blocks. */
    __device__ __forceinline__ void send(int plane, int planes, float4 state) const
    {
        const unsigned full = shared_address(&states.full[parity]);
        if (plane == 0 && threadIdx.x == 0)
            mbarrier_arrive_expect_tx(full, 16 * slices * planes);
        if (lane < (int)blocks)
            store_async(in_block(shared_address(&states.states[parity][plane][slice]), lane), in_block(full, lane),
                        state);
    }
    /* Waits for the states of all slices. They stay while this warp has not sent twice more: the exchange after the
     * next one needs its state in the next one. */
    __device__ __forceinline__ void receive()
    {
        mbarrier_wait_together(shared_address(&states.full[parity]), arrivals >> parity & 1);
        arrivals ^= 1u << parity;
        parity ^= 1;
    }
    /* Of the states received last. */
    __device__ __forceinline__ const float4 *received(int plane) const
    {
        return states.states[parity ^ 1][plane];
    }
    /* Calls f(s) for the slices of this lane. */
    template <class F> __device__ __forceinline__ void for_slices(const F &f) const
    {
        for_states([&](int s) {
            if (s < slices)
                f(s);
        });
    }
    /* And for some that do not exist, whose states are those of slices without mass. */
    template <class F> __device__ __forceinline__ void for_states(const F &f) const
    {
#pragma unroll
        for (int i = 0; i < MOST_SLICES / 32; i++)
            if (32 * i < slices)
                f(lane + 32 * i);
    }
};

/* The same with its slots and its slice, in any layout. */
template <class T, int OPERANDS, int PLANES, int SLOTS = OPERANDS + 1> struct cluster_warp : cluster_rows<PLANES> {
    typedef slice_of<T> slice_type;
    typedef cluster_rows<PLANES> base;
    using base::lane;
    using base::row;
    using base::rows;
    using base::slice;
    using base::slices;

    int first_column, columns; /* of this slice */
    int slots;                 /* where this warp's begin in the shared memory asked for */
    unsigned filled;           /* mbarriers: one per operand */
    unsigned phases;           /* their parities, by bits */
    T edge[OPERANDS];          /* of a slice requested, see edge_of */
    int ahead;                 /* how far from a multiple of 16 slices requested begin, by bytes */

    __device__ __forceinline__ cluster_warp(const onep_logits_rows &all, long long all_columns, unsigned *chunk_counter,
                                            exchange<PLANES> &shared_states, unsigned long long *barriers)
        : base(all, (int)((all_columns + slice_type::COLUMNS - 1) / slice_type::COLUMNS), chunk_counter, shared_states),
          phases(0), ahead(0)
    {
        const int warp = from_lane_0((int)(threadIdx.x >> 5));
        first_column = slice * slice_type::COLUMNS;
        const int left = (int)all_columns - first_column;
        columns = left < 0 ? 0 : left < slice_type::COLUMNS ? left : slice_type::COLUMNS;
        slots = warp * SLOTS * ONEP_LOGITS_SLOT_BYTES;
        filled = shared_address(barriers + warp * OPERANDS);
    }
    __device__ __forceinline__ void begin(int *claims)
    {
        base::begin(claims, filled, OPERANDS);
    }

    /* ---- copies ---- */

    /*
     * A slice lies in its slot as far from a multiple of 16 as in memory, so that bulk copies have its inner part
     * there. The slot after the operands' is where gradients are put in order.
     */
    __device__ __forceinline__ unsigned char *slot(int operand) const
    {
        ONEP_DYNAMIC_SHARED(memory);
        return memory + slots + operand * ONEP_LOGITS_SLOT_BYTES;
    }
    __device__ __forceinline__ char *slice_at(const onep_logits_operand &o, int of_row) const
    {
        return o.data ? row_of(o, rows, of_row) + first_column * o.col_stride : 0;
    }
    __device__ __forceinline__ static int shift_of(const onep_logits_operand &o, const char *at)
    {
        return o.col_stride == sizeof(T) ? (int)((unsigned long long)at & 15) : 0;
    }
    /* Element `column` of the slice that is in its slot. */
    __device__ __forceinline__ T *element_at(int operand, int shift, int column) const
    {
        return reinterpret_cast<T *>(slot(operand) + shift) + column;
    }

    /* What lies before the inner part, and behind it: of one lane each, loaded when the rest is requested. */
    __device__ __forceinline__ int edge_of(int shift) const
    {
        const int before = (16 - shift & 15) / (int)sizeof(T), all = columns * (int)sizeof(T);
        const int behind = (shift + all & 15) / (int)sizeof(T);
        if (lane < 16)
            return lane < before && lane < columns ? lane : -1;
        return lane - 16 < behind && columns > before ? columns - behind + (lane - 16) : -1;
    }
    /* Begins to copy a row's slice; columns that do not follow each other are copied when it is awaited. */
    __device__ __forceinline__ void request(int operand, const onep_logits_operand &o, int of_row)
    {
        if (of_row < 0 || o.col_stride != sizeof(T))
            return;
        const char *from = slice_at(o, of_row);
        const int shift = shift_of(o, from), bytes = columns * (int)sizeof(T);
        ahead = (ahead & ~(0xff << 8 * operand)) | shift << 8 * operand;
        const int begin = 16 - shift & 15, end = (shift + bytes & ~15) - shift;
        if ((begin | (bytes - end)) != 0) {
            const int column = edge_of(shift);
            if (column >= 0)
                edge[operand] = reinterpret_cast<const T *>(from)[column];
        }
        if (lane != 0 || end <= begin)
            return;
        mbarrier_arrive_expect_tx(filled + 8 * operand, end - begin);
        copy_bulk(shared_address(slot(operand) + shift + begin), from + begin, end - begin, filled + 8 * operand);
    }
    /* Has this row's slice in its slot; returns how far from a multiple of 16 it begins. */
    __device__ __forceinline__ int await(int operand, const onep_logits_operand &o)
    {
        if (o.col_stride != sizeof(T)) {
            const char *from = slice_at(o, row);
#pragma unroll 2
            for (int i = lane; i < columns; i += 32)
                *element_at(operand, 0, i) = *reinterpret_cast<const T *>(from + i * o.col_stride);
            __syncwarp();
            return 0;
        }
        const int shift = ahead >> 8 * operand & 0xff, bytes = columns * (int)sizeof(T);
        const int begin = 16 - shift & 15, end = (shift + bytes & ~15) - shift;
        if (end > begin) {
            mbarrier_wait(filled + 8 * operand, phases >> operand & 1);
            phases ^= 1u << operand;
        }
        if ((begin | (bytes - end)) != 0) {
            const int column = edge_of(shift);
            if (column >= 0)
                *element_at(operand, shift, column) = edge[operand];
            fence_copies(); /* a later row's inner part may lie there */
            __syncwarp();
        }
        return shift;
    }
    /* The slice in registers, with -inf beyond the row's columns. */
    __device__ __forceinline__ void take(int operand, int shift, slice_type &x) const
    {
        if (shift == 0) {
            const pack<T> *from = reinterpret_cast<const pack<T> *>(slot(operand));
#pragma unroll
            for (int j = 0; j < VECTORS; j++)
                x.at[j] = from[32 * j + lane];
        } else {
            const uint4 *from = reinterpret_cast<const uint4 *>(slot(operand));
            const unsigned bits = (shift & 3) * 8;
#define TAKE(words) take_shifted<T, words>(from, lane, bits, x)
            ONEP_WITH_SHIFT(shift, TAKE)
#undef TAKE
        }
        if (columns < slice_type::COLUMNS) {
#pragma unroll
            for (int j = 0; j < VECTORS; j++)
#pragma unroll
                for (int i = 0; i < element<T>::lanes; i++)
                    if ((32 * j + lane) * element<T>::lanes + i >= columns)
                        narrow(x.at[j].at[i], minus_infinity(0.0f));
        }
    }

    /*
     * Writes a slice of this row of o, which may be absent: vector(j, made) for every vector of the lane, one() for a
     * column that has a value of its own, then finish(). Vectors that cannot be stored as they are, are put in order
     * first, from the second vector of a slot on.
     */
    struct writer {
        const cluster_warp &warp;
        const onep_logits_operand &o;
        char *to;
        T *at;
        int shift, end;
        bool is_direct;

        __device__ __forceinline__ writer(const cluster_warp &of, const onep_logits_operand &operand)
            : warp(of), o(operand), to(of.slice_at(operand, of.row)), shift(shift_of(operand, to)),
              end(to ? of.columns : 0),
              is_direct(!to || (operand.col_stride == sizeof(T) && shift == 0 && of.columns % element<T>::lanes == 0))
        {
            at = is_direct ? reinterpret_cast<T *>(to) : of.element_at(OPERANDS, 16, 0);
        }
        __device__ __forceinline__ void vector(int j, const float (&made)[element<T>::lanes]) const
        {
            const int column = (32 * j + warp.lane) * element<T>::lanes;
            if (column < end)
                store_pack(at + column, packed(T(), made));
        }
        __device__ __forceinline__ void one(int column, float x) const
        {
            if (column >= 0 && (column / element<T>::lanes & 31) == warp.lane && end > 0)
                narrow(at[column], x);
        }
        __device__ __forceinline__ void finish() const
        {
            if (is_direct)
                return;
            const int lane = warp.lane;
            __syncwarp(); /* lanes store what other lanes have put in order */
            if (o.col_stride == sizeof(T)) {
                const uint4 *vectors = reinterpret_cast<const uint4 *>(warp.slot(OPERANDS));
                const int bytes = warp.columns * (int)sizeof(T);
                const unsigned bits = (16 - shift & 3) * 8;
                const auto store = [&](int j, uint4 vector) {
                    const int from = (32 * j + lane) * 16 - (shift == 0 ? 16 : shift);
                    if (from >= 0 && from + 16 <= bytes)
                        *reinterpret_cast<uint4 *>(to + from) = vector;
                };
#define STORE(words) for_shifted<words>(vectors, lane, bits, store)
                ONEP_WITH_SHIFT(16 - shift & 15, STORE)
#undef STORE
                const int column = warp.edge_of(shift);
                if (column >= 0)
                    reinterpret_cast<T *>(to)[column] = at[column];
            } else {
#pragma unroll 2
                for (int i = lane; i < warp.columns; i += 32)
                    *reinterpret_cast<T *>(to + i * o.col_stride) = at[i];
            }
            __syncwarp(); /* before the next row is put there */
        }
    };
    /* make(j, made) makes vector j; x goes to one column, if that is one. */
    template <class F>
    __device__ __forceinline__ void put(const onep_logits_operand &o, const F &make, int column, float x) const
    {
        const writer to(*this, o);
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            float made[element<T>::lanes];
            make(j, made);
            to.vector(j, made);
        }
        to.one(column, x);
        to.finish();
    }
    __device__ __forceinline__ void put_all(const onep_logits_operand &o, float x) const
    {
        put(
            o,
            [&](int, float(&made)[element<T>::lanes]) {
#pragma unroll
                for (int i = 0; i < element<T>::lanes; i++)
                    made[i] = x;
            },
            -1, 0);
    }
    /* Zeros in columns [all, width), by the last slice. */
    __device__ __forceinline__ void put_beyond(const onep_logits_operand &o, long long all, long long width) const
    {
        if (all == width || slice != slices - 1 || !o.data)
            return;
        T zero;
        narrow(zero, 0.0f);
        for (long long i = all + lane; i < width; i += 32)
            *reinterpret_cast<T *>(row_of(o, rows, row) + i * o.col_stride) = zero;
    }
};

#endif
