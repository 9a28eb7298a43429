"""`python download_weights.py [RUN|tinker://…]` writes trained weights to ./checkpoints/<hash>/.

Without a name, the weights of the newest run are written; the folder is printed. It runs `hermes rl weights`.
"""

from hermes.download_weights import main

if __name__ == "__main__":
    main()
