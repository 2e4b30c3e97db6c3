"""What the scripts of this folder share."""

import json
import os


def rounded(tensor):
    return (tensor * 1000).round() / 1000


def write(name, document, **how):
    """Writes `name`.json beside this file; `how` is for json.dumps()."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(document, **how) + "\n")
    print(path, os.path.getsize(path), "bytes")
