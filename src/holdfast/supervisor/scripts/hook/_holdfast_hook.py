# ruff: noqa: UP031, SIM115
# mypy: ignore-errors
"""What runs inside a script under `holdfast run`: it counts optimizer steps and remembers the last exception.

It is loaded by whatever Python the script runs on, before the script: the standard library alone, no syntax newer than
Python 3.8, nothing imported that a script has not imported itself, and no error that could reach the script.

  steps        torch's global optimizer-step hook, set once the script has imported torch; no module is touched
  checkpoints  the step of each torch.save, so that what is repeated after a restart is counted and not guessed
  exception    read from `sys` when the interpreter ends
  stacks       faulthandler, on a crash and on a signal that nobody else uses
  resuming     after a restart, `Trainer.fit` of Lightning, `Trainer.train` of transformers and `YOLO.train` of
               ultralytics begin at a checkpoint, if the script does not name one itself
  remedies     what the doctor found to help a device is switched on, as soon as torch is there
  batches      after memory ran out, the Trainer of transformers computes a batch in pieces and adds their gradients
"""

import os
import sys
from time import monotonic_ns, time_ns

# The board, in words of eight bytes: holdfast.base.board knows the same numbers, and a test compares them.
MAGIC, PID, BEATS, PHASE, SINCE, STEP, ATTEMPT, ATTEMPTS = 0, 2, 3, 4, 5, 6, 7, 8
COUNTS, SLOWEST, FIRST = 64, 96, 128
FITS, TORCH = 40, 41
MARKS, MARKED = 192, 96  # (step, time) of the last steps, round and round: a checkpoint's time tells its step
LOOP = 10
SIZE = 4096
MAGIC_NUMBER = 0x484F4C4446415354
FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "ultralytics", "accelerate", "holdfast")
MOST_TEXT = 2000
MOST_SAVES = 1 << 18
NEAR = 50000000
FILE_CLOCK = 5  # Linux: CLOCK_REALTIME_COARSE, by which the kernel dates files. It may be 10 ms behind the other one.

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)

_folder = ""
_resume = ""
_exact = False
_words = None
_mine = 0
_attached = False
_whole = None


def start():
    """At the start of every Python process of the script."""
    global _folder, _resume
    _folder = os.environ.get("HOLDFAST_HOOK", "")
    if not _folder or not os.path.isdir(_folder):
        return
    _resume = os.environ.get("HOLDFAST_RESUME", "")
    if os.environ.get("HOLDFAST_REMEDIES"):
        ACTS["torch"] = _apply_remedies
    if os.environ.get("HOLDFAST_EXACT"):
        _start_exact()
    sys.meta_path.insert(0, Finder())
    import atexit

    atexit.register(_at_exit, os.getpid())


def _start_exact():
    """`holdfast run --exact`: the file beside this one hands out the whole state."""
    global _whole
    _whole = _beside("_holdfast_exact")
    _whole.start(sys.modules["_holdfast_hook"])


def _beside(name):
    """A file that lies beside this one."""
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# -- following imports -------------------------------------------------------------------------------------------


class Finder:
    """Looks on while modules are imported, and acts when one of a few has been."""

    def find_spec(self, name, path=None, target=None):
        act = ACTS.get(name)
        if act is None:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Follower(spec.loader, act)
                return spec
        return None


class Follower:
    """A module's own loader, and then one of our acts."""

    def __init__(self, loader, act):
        self._loader = loader
        self._act = act

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        spec = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._act(module)
        except Exception:
            pass

    def __getattr__(self, name):
        return getattr(self._loader, name)


# -- steps -------------------------------------------------------------------------------------------------------


def _torch_is_here(module):
    """torch.optim.optimizer was imported: every optimizer tells us when it has made a step."""
    global _words
    words = _open_board()
    if words is None:
        return
    _words = words
    words[TORCH] = 1
    _listen_for_crashes()
    if os.environ.get("RANK", "0") not in ("", "0"):
        return  # of several processes that train one model, one is counted
    _after_step._torchdynamo_disable = True
    module.register_optimizer_step_post_hook(_after_step)
    if _whole is not None:
        _whole.torch_is_here(module)
    if os.environ.get("HOLDFAST_WEIGHTS"):
        _beside("_holdfast_weights").torch_is_here(module)


def _open_board():
    import mmap

    try:
        fd = os.open(os.path.join(_folder, "board"), os.O_RDWR)
    except OSError:
        return None
    try:
        words = memoryview(mmap.mmap(fd, SIZE)).cast("q")
    finally:
        os.close(fd)
    return words if words[MAGIC] == MAGIC_NUMBER else None


def _after_step(optimizer, args, kwargs, now=monotonic_ns, clock=time_ns, getpid=os.getpid):
    words = _words
    if _mine != getpid():
        _claim(optimizer)
        return
    if _attached:
        return
    time = now()
    took = time - words[SINCE]
    words[SINCE] = time
    step = words[STEP] + 1
    words[STEP] = step
    words[ATTEMPT] = step
    words[ATTEMPTS] += 1
    words[BEATS] += 1
    mark = MARKS + 2 * (step % MARKED)
    words[mark] = step
    words[mark + 1] = clock()
    count = words[COUNTS + LOOP] + 1
    words[COUNTS + LOOP] = count
    if count <= 3:
        if took > words[FIRST + LOOP]:
            words[FIRST + LOOP] = took
    elif took > words[SLOWEST + LOOP]:
        words[SLOWEST + LOOP] = took


def _claim(optimizer):
    """The first step of this process: it is the one that is counted, unless another one is and lives."""
    global _mine
    try:
        words, mine = _words, os.getpid()
        holder = words[PID]
        if holder and holder != mine and _lives(holder):
            return
        words[PID] = mine
        _mine = mine
        words[SINCE] = monotonic_ns()
        words[PHASE] = LOOP
        if not _attached:
            words[STEP] += 1
            words[ATTEMPT] = words[STEP]
            words[ATTEMPTS] += 1
        words[BEATS] += 1
        _write(
            "who.json",
            {
                "pid": mine,
                "python": sys.version.split()[0],
                "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
                "frameworks": [name for name in FRAMEWORKS if name in sys.modules],
                "device": _device_of(optimizer),
                "argv": list(getattr(sys, "argv", [])),
                "cwd": os.getcwd(),
            },
        )
    except Exception:
        pass


def _device_of(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            return str(param.device)
    return ""


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _apply_remedies(module):
    """The switches of holdfast.devices.flags, which needs nothing but torch."""
    import importlib.util

    holdfast = os.path.abspath(__file__)
    for _ in range(4):  # hook, scripts, supervisor, holdfast
        holdfast = os.path.dirname(holdfast)
    spec = importlib.util.spec_from_file_location("_holdfast_flags", os.path.join(holdfast, "devices", "flags.py"))
    flags = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flags)
    flags.apply()


# -- checkpoints -------------------------------------------------------------------------------------------------


def _serialization_is_here(module):
    """torch.save asks a function of its module about the file first: there it is seen, and where the saving itself
    fails, no line of ours is in the script's traceback."""
    check = module._check_save_filelike

    def look(f):
        try:
            _note_save(f)
        except Exception:
            pass
        return check(f)

    module._check_save_filelike = look


def _note_save(f):
    """Which step this is, when, and which file: `saves.jsonl`, a line for each. Only of the process that is counted."""
    words = _words
    if words is None or _attached or words[PID] not in (0, os.getpid()):
        return
    name = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", "")
    path = os.path.abspath(os.fsdecode(name)) if name and not isinstance(name, int) else ""
    import json

    fd = os.open(os.path.join(_folder, "saves.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_size > MOST_SAVES:
            os.ftruncate(fd, 0)
        os.write(fd, (json.dumps([words[STEP], _date_of_files(fd), path]) + "\n").encode())
    finally:
        os.close(fd)


def _date_of_files(fd):
    """What a file that is written now is dated: by the kernel's slow clock, or by that of a server or a sandbox."""
    import time

    slow = time.clock_gettime_ns(FILE_CLOCK) if sys.platform == "linux" else time_ns()
    if os.utime not in os.supports_fd:
        return slow
    os.utime(fd)
    told = os.fstat(fd).st_mtime_ns
    return slow if abs(told - slow) < NEAR else told


# -- what a process leaves ---------------------------------------------------------------------------------------


def _write(name, record):
    import json

    path = os.path.join(_folder, name)
    part = path + "." + str(os.getpid())
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(record, file)
        os.replace(part, path)
    except (OSError, TypeError, ValueError):
        pass


def _at_exit(pid):
    """The interpreter ends. If an exception was the reason, it is still in `sys`."""
    if os.getpid() != pid:
        return
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        if _mine == pid:
            _write("ended-%d.json" % pid, {"pid": pid})
        return
    try:
        _write("error-%d.json" % pid, {"pid": pid, "chain": [_describe(link) for link in _chain(error)][:20]})
    except Exception:
        pass


def _chain(error):
    seen, waiting = [], [error]
    while waiting and len(seen) < 20:
        link = waiting.pop(0)
        if any(link is other for other in seen):
            continue
        seen.append(link)
        waiting.extend(getattr(link, "exceptions", ()))
        before = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        if before is not None:
            waiting.append(before)
    return seen


def _describe(error):
    try:
        text = str(error)
    except Exception:
        text = ""
    where, by_loader, trace = "", False, error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        by_loader = by_loader or module.startswith("torch.utils.data")
        where = "%s:%d" % (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    code = getattr(error, "error_code", None)
    number = getattr(error, "errno", None)
    child = getattr(error, "returncode", None)
    if hasattr(error, "get_first_failure"):
        child = _first_to_die(error)
    return {
        "types": ["%s.%s" % (cls.__module__, cls.__qualname__) for cls in type(error).__mro__],
        "text": text[:MOST_TEXT],
        "error_code": code if isinstance(code, int) else None,
        "errno": number if isinstance(number, int) else None,
        "returncode": child if isinstance(child, int) else None,
        "by_loader": by_loader,
        "where": where,
    }


def _first_to_die(error):
    """Of the processes torchrun lost: one that a signal has ended comes first, the others only missed it then.
    Not SIGTERM, which is torchrun's own, and not SIGABRT, which may be how a library says that it misses somebody."""
    codes = [failure.exitcode for failure in error.failures.values()]
    killed = [code for code in codes if code < 0 and code not in (-15, -6)]
    return killed[0] if killed else error.get_first_failure()[1].exitcode


def _new(name):
    """A file of this process, its owner's alone."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | _NOFOLLOW
    return os.open(os.path.join(_folder, name), flags, 0o600)


def _listen_for_crashes():
    """Stacks into files of ours: what the script prints stays what it printed."""
    import faulthandler
    import signal

    try:
        if not faulthandler.is_enabled():
            crash = open(_new("crash-%d.txt" % os.getpid()), "w")
            faulthandler.enable(crash, all_threads=True)
            _kept.append(crash)
        number = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", 0)
        if number > 0 and signal.getsignal(number) == signal.SIG_DFL:
            stacks = open(_new("stacks-%d.txt" % os.getpid()), "w")
            faulthandler.register(number, stacks, all_threads=True, chain=False)
            _kept.append(stacks)
    except Exception:
        pass


_kept = []


# -- going on after a restart ------------------------------------------------------------------------------------


def _lightning_is_here(module):
    _wrap(module.Trainer, "fit", "lightning", _by_argument(module.Trainer.fit, "ckpt_path"))


def _transformers_is_here(module):
    _wrap(module.Trainer, "train", "transformers", _by_argument(module.Trainer.train, "resume_from_checkpoint"))
    _divide_batches(module.Trainer)


def _ultralytics_is_here(module):
    _wrap(module.Model, "train", "ultralytics", _yolo)


def _yolo(original, checkpoint, args, kwargs):
    """`YOLO("last.pt").train(resume=True)` is how it goes on; what it was asked for is in the checkpoint."""
    if kwargs.get("resume"):
        return original(*args, **kwargs)
    args[0].ckpt_path = checkpoint  # which one version takes for any `resume`; others take the path itself
    try:
        return original(*args, **dict(kwargs, resume=checkpoint))
    except AssertionError as error:
        if "nothing to resume" not in str(error):  # as it is where the training was over, and what follows it failed
            raise
    return original(*args, **kwargs)


def _divide_batches(cls):
    """A Trainer is made: its batch is noted, and computed in pieces if memory was too small for it."""
    import functools
    import inspect

    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(*args, **kwargs):
        try:
            _divide(signature.bind(*args, **kwargs).arguments.get("args"))
        except Exception:
            pass
        original(*args, **kwargs)

    cls.__init__ = make


def _divide(training):
    """Steps, samples and learning rate stay what they were: what is computed at once becomes less."""
    batch, asked = training.per_device_train_batch_size, int(os.environ.get("HOLDFAST_PIECES") or 1)
    _write("batch.json", {"batch": batch})
    pieces = max(number for number in range(1, asked + 1) if batch % number == 0)
    if pieces > 1 and not hasattr(training, "_holdfast_pieces"):
        training._holdfast_pieces = pieces
        training.per_device_train_batch_size = batch // pieces
        training.gradient_accumulation_steps *= pieces


def _by_argument(method, argument):
    """A checkpoint is given by this argument: one of the script's files if the script gives none, the state of our last
    commit (`_exact`) in any case. The script's own (`ckpt_path="last"`) is older than that, or as old."""
    import inspect

    signature = inspect.signature(method)

    def begin(original, checkpoint, args, kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
            if _exact or bound.arguments.get(argument) is None:
                bound.arguments[argument] = checkpoint
                args, kwargs = bound.args, bound.kwargs
        except TypeError:
            pass
        return original(*args, **kwargs)

    return begin


def _wrap(cls, name, framework, begin_at):
    """The first call begins at the checkpoint we were given. Calls are counted, and whose the first was is noted."""
    import functools

    original = getattr(cls, name)

    @functools.wraps(original)
    def begin(*args, **kwargs):
        global _resume
        count = 0
        try:
            words = _words if _words is not None else _open_board()
            if words is not None:
                words[FITS] += 1
                count = words[FITS]
                if count == 1:
                    _write("fitted.json", {"framework": framework})
        except Exception:
            pass
        checkpoint, _resume = _resume, ""
        if checkpoint and count == 1:
            return begin_at(original, checkpoint, args, kwargs)
        return original(*args, **kwargs)

    setattr(cls, name, begin)


ACTS = {
    "torch.optim.optimizer": _torch_is_here,
    "torch.serialization": _serialization_is_here,
    "lightning.pytorch.trainer.trainer": _lightning_is_here,
    "pytorch_lightning.trainer.trainer": _lightning_is_here,
    "transformers.trainer": _transformers_is_here,
    "ultralytics.engine.model": _ultralytics_is_here,
}
