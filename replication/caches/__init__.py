"""What is called a cache in LLM serving, one kind a file or package."""
