"""What fits where: memory and time of a recipe on a machine, from configurations alone."""

from trustmopd.planning.memory import Gib, moments, peak
from trustmopd.planning.plan import Option, fastest, plan, to_json
from trustmopd.planning.workload import Setup, Workload, workload_of

__all__ = ["Gib", "Option", "Setup", "Workload", "fastest", "moments", "peak", "plan", "to_json", "workload_of"]
