"""The settings of a run that exists, for the commands that go on with it or send it somewhere."""

from __future__ import annotations

from holdfast.base.errors import UserError
from holdfast.run.folder import RunFolder
from holdfast.run.settings import COMMAND_LINE, Settings, kinds


def settings_of(folder: RunFolder, overrides: dict[str, str]) -> Settings:
    """Those of the run. Whom to tell and what tracks it are the user's where the user has not started the run here: a
    folder from elsewhere must not name a command, or say who gets the numbers and the credentials of a tracker."""
    info = folder.info
    saved = info.get("settings")
    own = ("notify",) if folder.vouched else ("notify", "track")
    try:
        kept = {name: values for name, values in saved.items() if name not in own} if isinstance(saved, dict) else {}
        settings = Settings.from_json(kept)
    except (AttributeError, TypeError):
        raise UserError(f"the settings in {folder.path / 'run.json'} cannot be read") from None
    now, taken = Settings.load(), tuple(f"{name}." for name in ("notify", "track") if name not in kept)
    for key in (key for key in kinds() if key.startswith(taken) and key in now.sources):
        settings = settings.override({key: now.get(key)}, now.source(key))
    return settings.override(overrides, COMMAND_LINE)
