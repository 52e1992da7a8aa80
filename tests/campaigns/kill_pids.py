def kill_commands(*a): pass
def start_at_once(*a): pass
def lose_the_disk(*a): pass
def use_pids_again(*a): pass
