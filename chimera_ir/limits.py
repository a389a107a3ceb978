"""Limits of texts, files and programs. They bound the time and memory that an untrusted input can take.

The largest programs in use are within them. The worst input within them takes up to a minute and some gigabytes.
docs/language.md lists each limit with the comment that it has here.
"""

# of a schedule's text
TEXT = 1_000_000  # characters of a text
TOKENS = 100_000  # words, numbers, symbols and comments of a text
NAME = 64  # characters of a name
NAMES = 256  # `param` and `let` of the top level together; `let` of a ticks order; parameters of a program
NESTING = 100  # nesting of an expression, or of blocks; the terms of a sum and the factors of a product are not nested
MAGNITUDE = 2**61  # magnitude of any value

# of a program, whether compiled or read
RANKS = 2**16  # ranks × width; stages; micro-batches of a group; parts of a size; window; index of a family of pipes
PIPES = 2**12  # pipes
CELLS = 2**18  # pipes × stages × width, a stage counted again for each tied set that names it; all-reduces of all ranks
TASKS = 2**21  # tasks × width, counted as at least two for every stage and micro-batch
INSTRUCTIONS = 4 * TASKS + CELLS  # instructions of all ranks
MEMBERS = 2**24  # ranks named by all gradient all-reduces together: for each group, its ranks squared
COST = 2**40  # cost of a task, or of a hop
TIME = 2**61  # all costs or times of a program added up; a time of a timeline, and its scale

# of the work that a schedule's text causes
FORMULAS = 2**14  # pipes × rules of a ticks order; pipes × stage clauses
KEYS = 16  # keys of all `then` of a greedy order together; limits of a greedy order
REPETITIONS = 1_000_000  # repetitions of all bodies of a listing's loops, over all ranks
WORK = 2**24  # operations of a compilation: placing tasks, and computing expressions, up to 64 points in one operation

# of a file
FILE = 2**30  # bytes of any file that the compiler reads; characters of a program or a timeline
HEADER = 2**25  # characters of a description, profile or partition, a program without instructions, a timeline without columns
INSTRUCTION = 2**20  # characters of an instruction
FIELDS = 1024  # fields of a JSON object; words NAME=VALUE in a line of a program
