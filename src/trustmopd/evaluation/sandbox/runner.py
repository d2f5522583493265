"""The first process inside the sandbox (`python -I -S -c <this>`): its child sets limits, drops the user id and becomes
the program. When the program ends so does this one, and the kernel ends whatever the program has left behind."""

import builtins
import os
import resource
import sys
import types

path, packages = sys.argv[1:3]
memory, seconds, processes, file_size, uid, report, out_of_memory = map(int, sys.argv[3:])


def limit(**limits: int) -> None:
    for name, wanted in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (bound, bound))


# This process too: a program of the same user could take control of it.
limit(CORE=0, AS=memory, CPU=seconds, FSIZE=file_size, NOFILE=256)
child = os.fork()
if processes:
    limit(NPROC=processes)
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(report, b"%d" % code)  # all of it: what this process could exit with has no room for signals
    os._exit(0)

os.close(report)
with open(path, encoding="utf-8", errors="surrogatepass") as file:
    source = file.read()
if uid >= 0:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)  # and with the user id go all capabilities

vars(builtins).update(exit=sys.exit, quit=sys.exit)  # what `site` would bring, and contest solutions call
sys.argv = ["program.py"]
sys.path.append(packages)
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
try:
    exec(compile(source, "program.py", "exec"), main.__dict__)
except MemoryError:
    # The program can end with any exit code; this signal is reserved for us.
    os.kill(os.getpid(), out_of_memory)
    os._exit(1)
