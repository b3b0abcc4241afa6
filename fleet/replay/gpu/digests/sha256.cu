// Tensor digests, format 1 of fleet/evidence/digests.py, on a CUDA device: SHA-256 (FIPS 180-4)
// over leaves of 2048 bytes, a tree over the leaves, and SHA-256(header || root) per tensor.
//
// One launch does all of it for up to 64 tensors. A block hashes some leaves of one tensor, climbs
// to one node over them, and publishes it; the block of a tensor that arrives last climbs over what
// all of them published and writes the digest. Leaves of a block begin at a multiple of a power of
// two, so a block's node is a node of the tree, whatever the number of blocks. Another kernel
// copies tensors to where such a launch will find them later.
//
// Integers only, each result a function of the bytes alone: order of blocks and threads, alignment
// and the kernel chosen cannot change it. The same text is compiled as C++ by the tests.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 LEAF_BYTES = 2048;
constexpr u32 MESSAGE_BLOCK_BYTES = 64;
constexpr u32 LEAF_MESSAGE_BLOCKS = LEAF_BYTES / MESSAGE_BLOCK_BYTES + 1;  // the last is padding
constexpr u32 MAX_JOBS = 64;
constexpr u32 HEADER_CAPACITY = 208;
constexpr u32 LAST_MESSAGE_WORDS = (HEADER_CAPACITY + 32 + 8) / MESSAGE_BLOCK_BYTES * 16 + 16;
constexpr u32 WIDE_THREADS = 256;    // at most
constexpr u32 NARROW_THREADS = 128;  // exactly
constexpr u32 WARP = 32;
constexpr u32 NARROW_LEAVES = NARROW_THREADS / WARP;
constexpr u32 NARROW_ROWS = NARROW_THREADS / 2;
constexpr u32 WIDE_ROWS = 32;
constexpr u32 GATHER_THREADS = 256;  // exactly
constexpr u32 PART_BYTES = 16;       // what each of them copies

// A digest as eight big-endian words, or, in the ring, as its 32 bytes.
struct alignas(16) Node {
    u32 word[8];
};

struct Job {
    u64 data;
    u64 num_bytes;
    u32 first_block;
    u32 num_blocks;
    u32 slot;
    u32 header_bytes;
    u8 header[HEADER_CAPACITY];
};

// The one argument of both digest kernels; jobs.py packs it. `nodes`: one per block. `arrived`: a
// counter per job, zero before the launch and after it. `one` is the number 1, unknown to the
// compiler.
struct Launch {
    u64 nodes;
    u64 arrived;
    u64 ring;
    u32 num_jobs;
    u32 one;
    Job jobs[MAX_JOBS];
};

// One tensor to copy, none of them empty. `to` is a multiple of 16, with room for one of bytes.
struct Copy {
    u64 from;
    u64 to;
    u32 num_bytes;
    u32 first_block;
};

// The one argument of the kernel that copies.
struct Gather {
    u64 num_copies;
    Copy copies[MAX_JOBS];
};

static_assert(sizeof(Job) == 240 && sizeof(Launch) == 32 + 64 * 240, "the layout of jobs.py");
static_assert(sizeof(Copy) == 24 && sizeof(Gather) == 8 + 64 * 24, "the layout of jobs.py");

struct Rounds {
    u32 word[64];
};

// Round inputs in shared memory. Lanes that write 16 bytes each into rows of their own share no
// bank: a row has 68 words.
struct alignas(16) Row {
    u32 kw[68];
};

constexpr u32 NARROW_ROOM_NODES =
    (NARROW_LEAVES * LEAF_MESSAGE_BLOCKS - NARROW_ROWS) * sizeof(Row) / sizeof(Node);

constexpr Rounds ROUND_CONSTANTS = {{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
}};

__device__ __forceinline__ constexpr u32 rotr(u32 x, u32 n) {
    return (x >> n) | (x << (32 - n));
}

// Round constants plus message words of the padding after a message of whole blocks.
__device__ constexpr Rounds padding_after(u32 message_bytes) {
    Rounds w = {};
    w.word[0] = 0x80000000u;
    w.word[15] = message_bytes * 8;
    for (u32 i = 16; i < 64; i++) {
        u32 near = w.word[i - 2], far = w.word[i - 15];
        w.word[i] = w.word[i - 16] + w.word[i - 7] +
                    (rotr(far, 7) ^ rotr(far, 18) ^ (far >> 3)) +
                    (rotr(near, 17) ^ rotr(near, 19) ^ (near >> 10));
    }
    for (u32 i = 0; i < 64; i++) w.word[i] += ROUND_CONSTANTS.word[i];
    return w;
}

__constant__ Rounds K = ROUND_CONSTANTS;
__constant__ Rounds LEAF_PADDING = padding_after(LEAF_BYTES);
__constant__ Rounds PAIR_PADDING = padding_after(2 * 32);

// x * factor + y in one instruction, which with a factor of `one` is a sum and with one of -1 a
// difference: other units of a multiprocessor do it than shift and combine bits, and those are what
// there are too few of. In assembler, or the compiler takes products apart and sums together.
__device__ __forceinline__ u32 plus(u32 x, u32 y, u32 factor) {
#ifdef __CUDA_ARCH__
    u32 sum;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(factor), "r"(y));
    return sum;
#else
    return x * factor + y;
#endif
}

__device__ __forceinline__ u32 plus(u32 x, u32 y, u32 z, u32 one) {
    return plus(x, plus(y, z, one), one);
}

__device__ __forceinline__ u32 swapped(u32 x) { return __byte_perm(x, 0, 0x0123); }

__device__ __forceinline__ void begin(u32 (&s)[8]) {
    s[0] = 0x6a09e667, s[1] = 0xbb67ae85, s[2] = 0x3c6ef372, s[3] = 0xa54ff53a;
    s[4] = 0x510e527f, s[5] = 0x9b05688c, s[6] = 0x1f83d9ab, s[7] = 0x5be0cd19;
}

// Round r on the state s, whose roles move by one place a round; kw: constant plus message word.
// Between a new e, or a, and the next stand rotations, one exclusive or and one addition: all other
// sums are of what is known before.
__device__ __forceinline__ void step(u32 (&s)[8], u32 r, u32 kw, u32 one) {
    const u32 a = s[(0 - r) & 7], b = s[(1 - r) & 7], c = s[(2 - r) & 7];
    const u32 e = s[(4 - r) & 7], f = s[(5 - r) & 7], g = s[(6 - r) & 7];
    u32 &d = s[(3 - r) & 7], &h = s[(7 - r) & 7];
    const u32 sum_e = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
    const u32 sum_a = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
    const u32 choice = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
    const u32 without_d = plus(d, majority, 0 - one);
    d = plus(sum_e, choice, plus(d, plus(h, kw, one), one), one);
    h = plus(sum_a, d, without_d, one);
}

// Message word i + 16 in the place of word i, both modulo 16.
__device__ __forceinline__ void extend(u32 (&w)[16], u32 i, u32 one) {
    const u32 far = w[(i + 1) & 15], near = w[(i + 14) & 15];
    const u32 low = rotr(far, 7) ^ rotr(far, 18) ^ (far >> 3);
    const u32 high = rotr(near, 17) ^ rotr(near, 19) ^ (near >> 10);
    w[i & 15] = plus(high, w[(i + 9) & 15], plus(low, w[i & 15], one), one);
}

__device__ __forceinline__ void add(u32 (&s)[8], const u32 (&other)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) s[i] += other[i];
}

__device__ __forceinline__ void copy(u32 (&to)[8], const u32 (&from)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) to[i] = from[i];
}

// One message block, all rounds in line: for kernels that run it many times.
__device__ __forceinline__ void compress_unrolled(u32 (&s)[8], u32 (&w)[16], u32 one) {
    u32 before[8];
    copy(before, s);
#pragma unroll
    for (u32 r = 0; r < 64; r++) {
        if (r >= 16) extend(w, r, one);
        step(s, r, plus(w[r & 15], K.word[r], one), one);
    }
    add(s, before);
}

// The same in half of the code: what runs a few times pays more for fetching instructions.
__device__ __forceinline__ void compress_rolled(u32 (&s)[8], u32 (&w)[16], u32 one) {
    u32 before[8];
    copy(before, s);
#pragma unroll 1
    for (u32 base = 0; base < 48; base += 16) {
#pragma unroll
        for (u32 r = 0; r < 16; r++) {
            step(s, r, plus(w[r], K.word[base + r], one), one);
            extend(w, r, one);
        }
    }
#pragma unroll
    for (u32 r = 0; r < 16; r++) step(s, r, plus(w[r], K.word[48 + r], one), one);
    add(s, before);
}

__device__ __forceinline__ void get_inputs(uint4 (&part)[4], const u32* kw) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) part[i] = ((const uint4*)kw)[i];
}

__device__ __forceinline__ void sixteen_steps(u32 (&s)[8], const uint4 (&part)[4], u32 one) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        step(s, 4 * i, part[i].x, one);
        step(s, 4 * i + 1, part[i].y, one);
        step(s, 4 * i + 2, part[i].z, one);
        step(s, 4 * i + 3, part[i].w, one);
    }
}

// One message block whose round inputs are known already; the next are read while these are used.
__device__ __forceinline__ void compress_spread(u32 (&s)[8], const u32* kw, u32 one) {
    u32 before[8];
    uint4 part[4], next[4];
    copy(before, s);
    get_inputs(next, kw);
#pragma unroll 1
    for (u32 base = 0; base < 64; base += 16) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) part[i] = next[i];
        get_inputs(next, kw + (base + 16) % 64);  // after the last, the first again: never used
        sixteen_steps(s, part, one);
    }
    add(s, before);
}

// Sixteen round inputs, from `base` on, written out. To be called with every base in turn.
__device__ __forceinline__ void spread_part(u32* kw, u32 (&w)[16], u32 base, u32 one) {
    if (base) {
#pragma unroll
        for (u32 i = 0; i < 16; i++) extend(w, i, one);
    }
#pragma unroll
    for (u32 i = 0; i < 16; i += 4) {
        uint4 part;
        part.x = w[i] + K.word[base + i], part.y = w[i + 1] + K.word[base + i + 1];
        part.z = w[i + 2] + K.word[base + i + 2], part.w = w[i + 3] + K.word[base + i + 3];
        ((uint4*)(kw + base))[i / 4] = part;
    }
}

// Round inputs of one message block, written out: what compress_spread reads.
__device__ __forceinline__ void spread(u32* kw, u32 (&w)[16], u32 one) {
#pragma unroll 1
    for (u32 base = 0; base < 64; base += 16) spread_part(kw, w, base, one);
}

// Message blocks by two threads each, which share `kw` and belong to different warps: one spreads
// its words, the other takes the rounds, sixteen behind. The whole block comes here; a thread that
// does neither waits with the others.
__device__ __forceinline__ void compress_by_two(u32 (&s)[8], u32 (&w)[16], u32* kw, bool spreads,
                                                bool hashes, u32 one) {
    u32 before[8];
    copy(before, s);
#pragma unroll 1
    for (u32 base = 0; base <= 64; base += 16) {
        if (spreads && base < 64) spread_part(kw, w, base, one);
        if (hashes && base > 0) {
            uint4 part[4];
            get_inputs(part, kw + base - 16);
            sixteen_steps(s, part, one);
        }
        __syncthreads();
    }
    add(s, before);
}

// Message blocks of a message with its padding: 0x80, zeros, eight bytes of length.
__device__ __forceinline__ u32 message_blocks(u32 num_bytes) {
    return (num_bytes + 8) / MESSAGE_BLOCK_BYTES + 1;
}

// A message block that the message does not fill: byte by byte, never past the end.
__device__ __forceinline__ void load_ragged(u32 (&w)[16], const u8* data, u32 num_bytes,
                                            u32 block) {
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        w[i] = 0;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 at = block * MESSAGE_BLOCK_BYTES + 4 * i + j;
            w[i] = w[i] << 8 | (at < num_bytes ? data[at] : at == num_bytes ? 0x80u : 0u);
        }
    }
    if (block + 1 == message_blocks(num_bytes)) w[15] = num_bytes * 8;
}

__device__ __forceinline__ bool is_aligned(const u8* data) { return ((u64)data & 15) == 0; }

__device__ __forceinline__ void fetch(uint4 (&raw)[4], const u8* data) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) raw[i] = ((const uint4*)data)[i];
}

__device__ __forceinline__ void unpack(u32 (&w)[16], const uint4 (&raw)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        w[4 * i] = swapped(raw[i].x), w[4 * i + 1] = swapped(raw[i].y);
        w[4 * i + 2] = swapped(raw[i].z), w[4 * i + 3] = swapped(raw[i].w);
    }
}

// A whole message block at any address, from aligned words that hold at least one byte of it.
__device__ __forceinline__ void load_words(u32 (&w)[16], const u8* data) {
    const u32 off = (u32)((u64)data & 3), chosen = 0x0123 + 0x1111 * off;
    const u32* words = (const u32*)(data - off);
    u32 left = words[0];
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        const u32 right = (i < 15 || off) ? words[i + 1] : 0;
        w[i] = __byte_perm(left, right, chosen);
        left = right;
    }
}

__device__ __forceinline__ void load(u32 (&w)[16], const u8* data, u32 num_bytes, u32 block) {
    const u8* at = data + block * MESSAGE_BLOCK_BYTES;
    if ((block + 1) * MESSAGE_BLOCK_BYTES > num_bytes) {
        load_ragged(w, data, num_bytes, block);
    } else if (is_aligned(at)) {
        uint4 raw[4];
        fetch(raw, at);
        unpack(w, raw);
    } else {
        load_words(w, at);
    }
}

// A leaf by one thread; the next message block is on its way while this one is hashed.
__device__ __forceinline__ void hash_leaf(u32 (&s)[8], const u8* data, u32 num_bytes, u32 one) {
    const u32 blocks = message_blocks(num_bytes);
    const bool aligned = is_aligned(data);
    uint4 ahead[4] = {};
    if (aligned && num_bytes >= MESSAGE_BLOCK_BYTES) fetch(ahead, data);
#pragma unroll 1
    for (u32 b = 0; b < blocks; b++) {
        u32 w[16];
        const u32 end = (b + 1) * MESSAGE_BLOCK_BYTES;
        if (aligned && end <= num_bytes) {
            unpack(w, ahead);
            if (end + MESSAGE_BLOCK_BYTES <= num_bytes) fetch(ahead, data + end);
        } else {
            load(w, data, num_bytes, b);
        }
        compress_unrolled(s, w, one);
    }
}

__device__ __forceinline__ void get(u32* words, const Node& node) {
    const uint4 low = ((const uint4*)node.word)[0], high = ((const uint4*)node.word)[1];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}

__device__ __forceinline__ void put(Node& node, const u32 (&s)[8]) {
    ((uint4*)node.word)[0] = uint4{s[0], s[1], s[2], s[3]};
    ((uint4*)node.word)[1] = uint4{s[4], s[5], s[6], s[7]};
}

__device__ __forceinline__ void hash_pair(u32 (&s)[8], const Node* pair, u32 one) {
    u32 w[16];
    get(w, pair[0]);
    get(w + 8, pair[1]);
    begin(s);
    compress_rolled(s, w, one);
    compress_spread(s, PAIR_PADDING.word, one);
}

// Shared memory of a block: for the nodes of one level, and for round inputs of as many message
// blocks as there are rows, half of the threads at most.
struct Room {
    Node* nodes;
    u32 num_nodes;
    Row* rows;
    u32 num_rows;
};

// A level of the tree. Where it may be written over the one below, all pairs that it replaces are
// read before a barrier and it is written after it.
__device__ __forceinline__ void climb_by_one(Node* above, const Node* nodes, u32 pairs, u32 one) {
#pragma unroll 1
    for (u32 base = 0; base < pairs; base += blockDim.x) {
        const u32 i = base + threadIdx.x;
        u32 s[8];
        if (i < pairs) hash_pair(s, nodes + 2 * i, one);
        __syncthreads();
        if (i < pairs) put(above[i], s);
    }
}

// The same with two threads a pair: as many threads would idle.
__device__ __forceinline__ void climb_by_two(Node* above, const Node* nodes, u32 pairs, Row* rows,
                                             u32 one) {
    const u32 half = blockDim.x / 2, i = threadIdx.x % half;
    const bool hashes = threadIdx.x < half && i < pairs, spreads = threadIdx.x >= half && i < pairs;
    u32 s[8], w[16] = {};
    if (spreads) get(w, nodes[2 * i]), get(w + 8, nodes[2 * i + 1]);
    begin(s);
    compress_by_two(s, w, rows[i < pairs ? i : 0].kw, spreads, hashes, one);
    if (!hashes) return;
    compress_spread(s, PAIR_PADDING.word, one);
    put(above[i], s);
}

// Levels of the tree by the whole block, up to the one node that they end in. A level is written to
// the room if it fits, or over the one below.
__device__ __forceinline__ const Node* climb(Node* nodes, u32 num_nodes, Room room, u32 one) {
#pragma unroll 1
    while (num_nodes > 1) {
        const u32 pairs = num_nodes / 2, odd = num_nodes % 2;
        Node* const above = pairs + odd <= room.num_nodes ? room.nodes : nodes;
        if (pairs <= room.num_rows)
            climb_by_two(above, nodes, pairs, room.rows, one);
        else
            climb_by_one(above, nodes, pairs, one);
        if (odd && threadIdx.x == 0) above[pairs] = nodes[num_nodes - 1];
        __syncthreads();
        nodes = above;
        num_nodes = pairs + odd;
    }
    return nodes;
}

// A byte of header || root || 0x80 || zeros.
__device__ __forceinline__ u32 last_message_byte(const Job& job, const Node& root, u32 at) {
    if (at < job.header_bytes) return job.header[at];
    at -= job.header_bytes;
    if (at < 32) return root.word[at / 4] >> (24 - 8 * (at % 4)) & 0xff;
    return at == 32 ? 0x80 : 0;
}

// The digest of a tensor with that root: the whole block writes the message, one thread hashes it
// while others spread its blocks.
__device__ __forceinline__ void seal(const Launch& launch, const Job& job, const Node& root,
                                     Row* rows) {
    __shared__ u32 message[LAST_MESSAGE_WORDS];
    const u32 num_bytes = job.header_bytes + 32, num_blocks = message_blocks(num_bytes);
    for (u32 i = threadIdx.x; i < num_blocks * 16; i += blockDim.x) {
        u32 word = 0;
        for (u32 j = 0; j < 4; j++) word = word << 8 | last_message_byte(job, root, 4 * i + j);
        message[i] = i == num_blocks * 16 - 1 ? num_bytes * 8 : word;
    }
    __syncthreads();
    const u32 half = blockDim.x / 2, i = threadIdx.x % half;
    const bool spreads = threadIdx.x >= half && i < num_blocks, hashes = threadIdx.x == 0;
    u32 s[8], w[16] = {};
    if (spreads) {
#pragma unroll
        for (u32 j = 0; j < 16; j++) w[j] = message[16 * i + j];
    }
    begin(s);
    compress_by_two(s, w, rows[spreads ? i : 0].kw, spreads, hashes, launch.one);
    if (!hashes) return;
#pragma unroll 1
    for (u32 b = 1; b < num_blocks; b++) compress_spread(s, rows[b].kw, launch.one);
#pragma unroll
    for (u32 j = 0; j < 8; j++) s[j] = swapped(s[j]);
    put(((Node*)launch.ring)[job.slot], s);
}

// From the nodes of this block to the digest, if this is the tensor's last block to come here.
// The fences around the counter make what other blocks published visible to all threads of it.
__device__ __forceinline__ void finish(const Launch& launch, u32 index, Node* level, u32 count,
                                       Room room) {
    __shared__ u32 is_last;
    const Job& job = launch.jobs[index];
    u32* arrived = (u32*)launch.arrived + index;
    const Node* top;
    bool over_blocks = false;
#pragma unroll 1
    while (true) {
        top = climb(level, count, room, launch.one);
        if (over_blocks || job.num_blocks == 1) break;
        if (threadIdx.x == 0) {
            ((Node*)launch.nodes)[blockIdx.x] = *top;
            __threadfence();
            is_last = atomicAdd(arrived, 1u) == job.num_blocks - 1;
        }
        __syncthreads();
        if (!is_last) return;
        __threadfence();
        if (threadIdx.x == 0) *arrived = 0;
        level = (Node*)launch.nodes + job.first_block;
        count = job.num_blocks;
        over_blocks = true;
    }
    seal(launch, job, *top, room.rows);
}

// What this block works for, of `count`: the last whose first block is not after it.
template <typename Each>
__device__ __forceinline__ u32 of_this_block(const Each (&each)[MAX_JOBS], u32 count) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (each[middle].first_block <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// An empty tensor has one leaf of no bytes.
__device__ __forceinline__ u64 num_leaves(const Job& job) {
    const u64 leaves = (job.num_bytes + LEAF_BYTES - 1) / LEAF_BYTES;
    return leaves ? leaves : 1;
}

__device__ __forceinline__ u32 leaf_bytes(const Job& job, u64 leaf) {
    const u64 rest = job.num_bytes - leaf * LEAF_BYTES;
    return rest < LEAF_BYTES ? (u32)rest : LEAF_BYTES;
}

// How many of a block's `places` for leaves, from `first` on, hold one.
__device__ __forceinline__ u32 leaves_here(const Job& job, u64 first, u32 places) {
    const u64 rest = num_leaves(job) - first;
    return rest < places ? (u32)rest : places;
}

// Many leaves: one thread each. The number of threads is a power of two.
extern "C" __global__ void __launch_bounds__(WIDE_THREADS)
    fleet_digest_wide(const __grid_constant__ Launch launch) {
    __shared__ Node nodes[WIDE_THREADS];
    __shared__ Row rows[WIDE_ROWS];
    const u32 index = of_this_block(launch.jobs, launch.num_jobs);
    const Job& job = launch.jobs[index];
    const u64 first = (u64)(blockIdx.x - job.first_block) * blockDim.x;
    const u32 count = leaves_here(job, first, blockDim.x);
    if (threadIdx.x < count) {
        const u64 leaf = first + threadIdx.x;
        u32 s[8];
        begin(s);
        hash_leaf(s, (const u8*)job.data + leaf * LEAF_BYTES, leaf_bytes(job, leaf), launch.one);
        put(nodes[threadIdx.x], s);
    }
    __syncthreads();
    finish(launch, index, nodes, count, Room{nodes, WIDE_THREADS, rows, WIDE_ROWS});
}

// Few leaves: one warp each, which is sooner done where threads would idle. Every lane prepares the
// round inputs of message blocks of its own; then all lanes take the same rounds.
extern "C" __global__ void __launch_bounds__(NARROW_THREADS)
    fleet_digest_narrow(const __grid_constant__ Launch launch) {
    __shared__ Row inputs[NARROW_LEAVES * LEAF_MESSAGE_BLOCKS];
    __shared__ Node nodes[NARROW_LEAVES];
    const u32 index = of_this_block(launch.jobs, launch.num_jobs);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Job& job = launch.jobs[index];
    const u64 first = (u64)(blockIdx.x - job.first_block) * NARROW_LEAVES, leaf = first + warp;
    const u32 count = leaves_here(job, first, NARROW_LEAVES);
    const u32 num_bytes = warp < count ? leaf_bytes(job, leaf) : 0;
    const u32 blocks = warp < count ? message_blocks(num_bytes) : 0;
    const u8* data = (const u8*)job.data + leaf * LEAF_BYTES;
    const bool whole = num_bytes == LEAF_BYTES;
    Row* const rows = inputs + warp * LEAF_MESSAGE_BLOCKS;
#pragma unroll 1
    for (u32 b = lane; b < (whole ? WARP : blocks); b += WARP) {
        u32 w[16];
        load(w, data, num_bytes, b);
        spread(rows[b].kw, w, launch.one);
    }
    if (whole) {  // its padding is always the same
        rows[WARP].kw[lane] = LEAF_PADDING.word[lane];
        rows[WARP].kw[lane + WARP] = LEAF_PADDING.word[lane + WARP];
    }
    __syncthreads();
    u32 s[8];
    begin(s);
#pragma unroll 1
    for (u32 b = 0; b < blocks; b++) compress_spread(s, rows[b].kw, launch.one);
    if (lane == 0 && warp < count) put(nodes[warp], s);
    __syncthreads();
    const Room room = {(Node*)(inputs + NARROW_ROWS), NARROW_ROOM_NODES, inputs, NARROW_ROWS};
    finish(launch, index, nodes, count, room);
}

// Up to 16 bytes at any address, zeros after them; no byte beside them is read.
__device__ __forceinline__ uint4 part_of(const u8* data, u32 num_bytes) {
    u32 w[4];
    if (num_bytes >= PART_BYTES && is_aligned(data)) return *(const uint4*)data;
    if (num_bytes >= PART_BYTES && ((u64)data & 3) == 0) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) w[i] = ((const u32*)data)[i];
    } else {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            w[i] = 0;
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 at = 4 * i + j;
                w[i] |= at < num_bytes ? (u32)data[at] << 8 * j : 0;
            }
        }
    }
    return uint4{w[0], w[1], w[2], w[3]};
}

// Tensors as they are now, to be digested later on the same stream.
extern "C" __global__ void __launch_bounds__(GATHER_THREADS)
    fleet_gather(const __grid_constant__ Gather gather) {
    const Copy& job = gather.copies[of_this_block(gather.copies, (u32)gather.num_copies)];
    const u32 thread = (blockIdx.x - job.first_block) * GATHER_THREADS + threadIdx.x;
    const u32 at = thread * PART_BYTES;
    if (at >= job.num_bytes) return;
    *(uint4*)((u8*)job.to + at) = part_of((const u8*)job.from + at, job.num_bytes - at);
}
