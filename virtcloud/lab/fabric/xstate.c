/* This library is loaded into User-mode Linux with LD_PRELOAD. It avoids most of UML's ptrace() calls for the extended
 * processor state (x87, SSE, AVX), and it lets UML run on processors whose state is larger than UML supports.
 *
 * UML reads and writes the extended state of a process at each system call and page fault, although both rarely change
 * it. The library records the state of each stopped process, and calls the kernel only if the state may differ:
 * - A process that runs its own code may change its state. UML resumes it with any request but PTRACE_CONT.
 * - A signal (PTRACE_CONT with data) resets the state for the signal's handler.
 * - UML's stub, which maps pages (PTRACE_CONT without data), does not change the state.
 *
 * UML 6.1 stores 2696 bytes. A processor with AMX has 11008 bytes, and the kernel accepts only the complete state
 * (otherwise PTRACE_SETREGSET returns EFAULT). The library extends the part that UML supports to the complete state.
 * The AMX tiles are left in their initial state, so no program inside UML may use them. */
typedef unsigned long word;
struct vector { void *base; word length; };
enum { PEEKS = 3, CONT = 7, GETREGS = 12, SETREGS = 13, GETSIGINFO = 0x4202, GETREGSET = 0x4204, SETREGSET = 0x4205 };
enum { XSTATE = 0x202, SYS_PTRACE = 101, MAX = 65536, PART = 2696, XSTATE_BV = 512 / 8, PROCESSES = 1024 };
#define KNOWN 0x2ffUL /* x87, SSE, AVX, MPX, AVX-512, PKRU: bits 0-7 and 9 */
struct process { long pid; unsigned char state[PART] __attribute__((aligned(8))); };
static struct process recorded[PROCESSES];
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

static int equal(const word *one, const word *other)
{
	word difference = 0;
	for (int i = 0; i < PART / 8; i++)
		difference |= one[i] ^ other[i];
	return difference == 0;
}

static struct process *slot(long pid)
{
	return &recorded[(word)pid % PROCESSES];
}

static long get(long pid, struct vector *part)
{
	struct process *process = slot(pid);
	if (process->pid != pid) {
		struct vector all = { whole, whole_length ? PART : MAX };
		long result = call(GETREGSET, pid, XSTATE, &all);
		if (result < 0)
			return result;
		if (!whole_length)
			whole_length = all.length;
		copy(process->state, whole, PART);
		process->pid = pid;
	}
	copy(part->base, process->state, PART);
	return 0;
}

static long set(long pid, struct vector *part)
{
	struct vector all = { whole, whole_length };
	struct process *process = slot(pid);
	if (process->pid == pid && equal((word *)process->state, part->base))
		return 0;
	copy(whole, part->base, PART);
	if (whole_length > PART)
		((word *)whole)[XSTATE_BV] &= KNOWN;
	long result = call(SETREGSET, pid, XSTATE, &all);
	copy(process->state, part->base, PART);
	process->pid = result < 0 ? 0 : pid;
	return result;
}

static int changes_state(long request, void *data)
{
	return !((request == CONT && !data) || request == GETREGS || request == SETREGS || request == GETSIGINFO);
}

static long handle(long request, long pid, long address, void *data)
{
	struct vector *part = data;
	if (address == XSTATE && request == GETREGSET && part->length == PART)
		return get(pid, part);
	if (address == XSTATE && request == SETREGSET && part->length == PART && whole_length)
		return set(pid, part);
	if (changes_state(request, data) && slot(pid)->pid == pid)
		slot(pid)->pid = 0;
	return call(request, pid, address, data);
}

long ptrace(long request, long pid, long address, void *data)
{
	long peeked = 0;
	int peeks = request >= 1 && request <= PEEKS;
	long result = handle(request, pid, address, peeks ? &peeked : data);
	if (result < 0 && result > -4096) {
		*__errno_location() = (int)-result;
		return -1;
	}
	return peeks ? peeked : result;
}
