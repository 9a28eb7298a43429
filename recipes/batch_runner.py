"""The reference's script batch_runner.py: it runs `hermes batch`; --help lists the flags."""

from hermes.batch_runner import main

if __name__ == "__main__":
    main()
