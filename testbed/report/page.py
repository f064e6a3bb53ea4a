def write_report(p):
    return p
