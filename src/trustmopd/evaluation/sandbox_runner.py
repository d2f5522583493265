"""The first process inside the sandbox (`python -I -S -c <this>`): its child sets limits, drops the user id and becomes
the program. When the program ends so does this one, and the kernel ends whatever the program has left behind."""

import builtins
import os
import resource
import sys
import types

child = os.fork()
if child:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)  # as shells say that a signal ended it

path, packages = sys.argv[1:3]
memory, seconds, processes, file_size, uid = map(int, sys.argv[3:])
with open(path, encoding="utf-8", errors="surrogatepass") as file:
    source = file.read()
limits = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_AS: memory,
    resource.RLIMIT_CPU: seconds,
    resource.RLIMIT_FSIZE: file_size,
    resource.RLIMIT_NOFILE: 256,
    **({resource.RLIMIT_NPROC: processes} if processes else {}),
}
for kind, limit in limits.items():
    hard = resource.getrlimit(kind)[1]
    bound = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (bound, bound))
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
    os._exit(97)
