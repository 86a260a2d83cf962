"""The keys of the wire: whether there are any, and whether they would be used."""

from specmesh.doctor.check import Check, fail, ok
from specmesh.errors import ConfigError, InsecureKeys
from specmesh.keys import KeyFolder, Listing, find_keys

GROUP = "keys"


def checks() -> list[Check]:
    """A check for the folder that daemons would use."""
    folder = find_keys(None)
    if folder is None:
        return [ok(GROUP, "keys", "none: the wire works on this machine, and through tunnels")]
    return [judge_folder(folder)]


def judge_folder(folder: KeyFolder) -> Check:
    """A folder with a key."""
    try:
        folder.identity()
        drafters, verifiers = (len(folder.entries(listing)) for listing in Listing)
    except InsecureKeys as error:
        return fail(GROUP, "keys", str(error), "what the line above says, then look again")
    except ConfigError as error:
        return fail(GROUP, "keys", str(error), f"specmesh keys list --keys {folder.path}")
    told = f"{folder.path}: {drafters} drafter{'s' * (drafters != 1)} allowed"
    return ok(GROUP, "keys", f"{told}, {verifiers} verifier{'s' * (verifiers != 1)} known")
