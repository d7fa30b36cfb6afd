"""The one error of a run that is nobody's wrong argument."""


class RunError(RuntimeError):
    """A run cannot start or go on: its folder, its checkpoint or its settings are at fault (exit code 1).

    The message is one sentence that names the file or the setting.
    """
