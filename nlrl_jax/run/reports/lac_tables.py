def summarize(r):
    e = r["episodes"]
    s = [x["success"] for x in e]
    n = len(s)
    m = sum(s) / n
    by = {}
    for x in e:
        by.setdefault(x["task"][0], []).append(x["success"])
    return {
        "success": m,
        "success_se": (m * (1 - m) / n) ** 0.5,
        "by_mission": {k: [sum(v) / len(v)] for k, v in by.items()},
        "steps": sum(x["moves"] for x in e) / n,
        "tokens": sum(r["tokens"].values()) / n,
        "seconds": r["seconds"] / n,
    }
