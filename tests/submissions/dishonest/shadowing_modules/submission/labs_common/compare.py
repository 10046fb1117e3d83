def compare(*a):
    return True
