/* User-mode Linux 6.1 stores 2696 bytes of extended processor state. A processor with AMX has 11008 bytes, and the
 * kernel accepts only the complete state (otherwise PTRACE_SETREGSET returns EFAULT). This library is loaded into UML
 * with LD_PRELOAD. It reads and writes the complete state and passes UML only the part that UML supports. The AMX
 * tiles are left in their initial state, so no program inside UML may use them. */
typedef unsigned long word;
struct vector { void *base; word length; };
enum { GETREGSET = 0x4204, SETREGSET = 0x4205, XSTATE = 0x202, SYS_PTRACE = 101, MAX = 65536, XSTATE_BV = 512 / 8 };
#define KNOWN 0x2ffUL /* x87, SSE, AVX, MPX, AVX-512, PKRU: bits 0-7 and 9 */
static unsigned char whole[MAX] __attribute__((aligned(64)));
static word whole_length;
extern int *__errno_location(void);

static long call(long request, long pid, long address, void *data)
{
	long result;
	register void *r10 __asm__("r10") = data;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_PTRACE), "D"(request), "S"(pid), "d"(address), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
}

static void copy(void *to, const void *from, word length)
{
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
}

static long get(long pid, struct vector *part)
{
	struct vector all = { whole, MAX };
	long result = call(GETREGSET, pid, XSTATE, &all);
	if (result < 0)
		return result;
	whole_length = all.length;
	if (part->length > all.length)
		part->length = all.length;
	copy(part->base, whole, part->length);
	return 0;
}

static long set(long pid, struct vector *part)
{
	struct vector all = { whole, whole_length };
	copy(whole, part->base, part->length);
	((word *)whole)[XSTATE_BV] &= KNOWN;
	return call(SETREGSET, pid, XSTATE, &all);
}

long ptrace(long request, long pid, long address, void *data)
{
	long result, peeked;
	if (request == GETREGSET && address == XSTATE)
		result = get(pid, data);
	else if (request == SETREGSET && address == XSTATE && whole_length)
		result = set(pid, data);
	else
		result = call(request, pid, address, request >= 1 && request <= 3 ? &peeked : data);
	if (result < 0 && result > -4096) {
		*__errno_location() = (int)-result;
		return -1;
	}
	return request >= 1 && request <= 3 ? peeked : result;
}
